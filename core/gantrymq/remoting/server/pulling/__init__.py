"""Pulls and offsets."""
