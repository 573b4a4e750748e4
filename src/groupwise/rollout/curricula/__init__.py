"""Curricula that several methods use: which prompts come next."""
