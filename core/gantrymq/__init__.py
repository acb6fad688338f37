"""GantryMQ: one commit log, read and written through many protocols."""

__version__ = "0.1.0"
