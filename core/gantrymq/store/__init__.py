"""The log on disk and everything derived from it."""
