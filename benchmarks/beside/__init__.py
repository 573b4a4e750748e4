"""Groupwise and TRL on the same work, side by side: `python -m benchmarks.beside --help`."""
