"""Training: the loop, its guards, the warm start, and the objects that a run is built from."""
