"""Benchmarks of the gateway; each folder is one, run through `scripts/bench NAME`."""
