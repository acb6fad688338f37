"""What subscriptions may ask for: filters, and addresses of sinks."""
