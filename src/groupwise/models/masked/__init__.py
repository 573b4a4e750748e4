"""Masked diffusion models: a network that predicts masked cells, and the schedule by which it reveals them."""
