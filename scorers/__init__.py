"""Routing decisions as pure functions over a frozen view of the pool: no I/O, no clock, no random numbers."""
