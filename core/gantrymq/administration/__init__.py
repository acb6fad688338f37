"""What people and tools ask of a broker and change in it, below every wire."""
