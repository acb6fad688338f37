"""Slots: which broker group decides about which names (docs/decisions/0013)."""
