"""Settings that the stated effects of several methods share."""

STORED_SUMS = (
    "task = benchmarks/atlas/stored_sums/train.jsonl",
    "held_out = benchmarks/atlas/stored_sums/test.jsonl",
    "verifier = last_number",
)
"""Sums with stored answers: a worked solution, and a guess that is wrong."""
SLIPS = ("task = benchmarks/atlas/slips/train.jsonl", "held_out = benchmarks/atlas/slips/test.jsonl")
"""Pairs of worked solutions, of which the rejected one has a slip in its last step."""
REPEATED_SUMS = (
    "task = benchmarks/atlas/repeats/train.jsonl",
    "held_out = benchmarks/atlas/repeats/test.jsonl",
    "verifier = last_number",
    "iterations = 45",
    "method.objective.penalties = []",
)
"""Few sums that come again and again, for methods that learn how often a prompt is answered right."""
LARGE_GROUPS = ("prompts = 16", "method.group_size = 16", "method.minibatches = 4", "method.objective.penalties = []")
"""The sizes at which GRPO learns on wordy_sums. With those of all other effects it unlearned."""
GSPO_BOUNDS = (
    ("method.objective.surrogate.low = 3e-4", "method.objective.surrogate.high = 4e-4"),
    ("method.objective.surrogate.low = 3e-3", "method.objective.surrogate.high = 4e-3"),
    ("method.objective.surrogate.low = 3e-2", "method.objective.surrogate.high = 4e-2"),
)
"""The bounds among which GSPO is tuned: those of its paper, and ten and a hundred times as wide."""
