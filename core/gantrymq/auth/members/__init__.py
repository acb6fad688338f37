"""Processes of one cluster, and how they know each other."""
