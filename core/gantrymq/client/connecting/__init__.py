"""Connections to brokers and nameservers, routes, brokers to avoid."""
