"""What the gateway adds to the time between two events of a stream, beside the same streams without it."""
