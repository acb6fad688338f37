"""Doors for foreign protocols, each an adapter between its wire and BrokerPort."""
