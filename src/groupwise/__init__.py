"""Reinforcement-learning post-training of language models, in which every published method is a value."""
