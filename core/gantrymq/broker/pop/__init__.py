"""Pop consumers: leases of what was given out, dead letters."""
