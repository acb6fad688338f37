"""A broker group's connections to the others: what it knows of their routes, and what it takes from their forward queues."""
