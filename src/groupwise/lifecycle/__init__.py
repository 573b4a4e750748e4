"""The life of a run: start, continue, extend, phases, and its end."""
