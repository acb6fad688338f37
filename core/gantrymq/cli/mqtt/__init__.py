"""`gantry mqtt` and `gantry bridge`."""
