"""Connections that this process makes to others."""
