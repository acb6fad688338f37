"""What a queue's arguments mean, and how its dead letters look."""
