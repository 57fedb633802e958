"""Engines and a gateway together on one machine: what `twohop up` starts, watches and ends."""
