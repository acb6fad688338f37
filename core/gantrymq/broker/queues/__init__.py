"""The queue engine: what a queue of the broker decides by itself, whoever consumes and whoever is there (docs/decisions/0012)."""
