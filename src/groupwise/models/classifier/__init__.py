"""Reward models as verifiers read them, by text or by step, and sequence classifiers that a run trains."""
