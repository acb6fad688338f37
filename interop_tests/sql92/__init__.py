"""SQL92 expressions against RocketMQ's own classes."""
