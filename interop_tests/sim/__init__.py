"""Simulation of a broker, its clients, its network and its disk under one seed and virtual time (docs/operations/crash-tests.md)."""
