"""One run: the loop, its guards, the warm start, and what it is built from."""
