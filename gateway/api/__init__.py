"""What clients and operators reach: the inference routes (raw ASGI), and FastAPI for everything that is not hot."""
