"""SQL92 expressions of consumers, as RocketMQ understands them."""
