"""MQTT topics and filters as native topics and tags."""
