"""Transactional messages: half messages, checks, decisions."""
