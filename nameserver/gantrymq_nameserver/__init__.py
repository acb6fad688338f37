"""The nameserver: which brokers hold which topics."""
