"""`gantry bridge`."""
