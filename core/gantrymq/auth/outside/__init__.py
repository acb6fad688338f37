"""Logins that an operator's own HTTP service decides."""
