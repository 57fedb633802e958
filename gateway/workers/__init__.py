"""`twohop serve --workers N`: a supervisor with its worker processes, and the broker in it through which they share."""
