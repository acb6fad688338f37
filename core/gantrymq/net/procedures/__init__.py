"""Procedures: several calls in a row, each with its answer later."""
