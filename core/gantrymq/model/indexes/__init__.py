"""Indexes that cost little where there are very many keys."""
