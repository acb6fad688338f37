"""Keyed records of compacted system topics, in memory and in snapshots."""
