"""Spark on this machine: its Java, its Python, a session."""
