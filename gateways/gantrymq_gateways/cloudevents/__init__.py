"""The CloudEvents HTTP door."""
