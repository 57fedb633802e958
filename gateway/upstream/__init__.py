"""Our own small HTTP/1.1 client: the only code that talks to engines on a request's path."""
