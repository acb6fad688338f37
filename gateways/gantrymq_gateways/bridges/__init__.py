"""Links to brokers that already exist."""
