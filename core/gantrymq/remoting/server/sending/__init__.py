"""Requests that put messages into the log."""
