"""Requests of `gantry top`, `gantry broker` and the lists of topics and groups."""
