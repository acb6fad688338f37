"""Requests of pop consumers."""
