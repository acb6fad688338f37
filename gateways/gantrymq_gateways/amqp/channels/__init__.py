"""Channels and what is declared on them."""
