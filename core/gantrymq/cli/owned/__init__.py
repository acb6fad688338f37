"""What somebody owns, and how it is: queues, sessions, subscriptions, connections."""
