"""What the gateway's memory does under many open streams, and under ever new prompts and sessions."""
