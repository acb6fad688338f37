"""Doors in front of doors: what comes before, or around, a protocol's own bytes."""
