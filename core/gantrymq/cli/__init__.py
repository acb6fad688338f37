"""The gantry command."""
