"""Requests of tools (RocketMQ's AdminBrokerProcessor)."""
