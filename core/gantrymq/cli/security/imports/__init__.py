"""Accounts and rights of other brokers, as users and policies of ours."""
