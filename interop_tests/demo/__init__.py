"""The demonstration: one log, every door, on real input, with a kill in the middle. `./run demo`; see docs/demo.md."""
