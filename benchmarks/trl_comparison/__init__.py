"""Benchmark of Groupwise against TRL on equal work: `python -m benchmarks.trl_comparison --help`."""
