"""The twohop gateway: everything that touches sockets, clocks and processes."""
