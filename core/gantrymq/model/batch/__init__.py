"""Many messages as one: the form that they travel and wait in."""
