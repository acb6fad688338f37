"""Exchanges: what their types and arguments mean."""
