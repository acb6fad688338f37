"""The request code of ours about transactions, for server and clients (docs/formats/transactions.md)."""

from __future__ import annotations

from typing import Final

LIST_TRANSACTIONS: Final = 60110
"""Undecided half messages of a broker, a page at a time."""
