"""Where the front part of a prompt is cached: prompt bytes to block keys, block keys to endpoints."""
