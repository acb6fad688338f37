"""The entries that cursors read: where moved ones lie, bodies that many queues share, and what cannot be read."""
