"""Telemetry of devices: from topics to a table by day, alerts, and dead letters."""
