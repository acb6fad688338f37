"""Consumers whose handlers are called with messages."""
