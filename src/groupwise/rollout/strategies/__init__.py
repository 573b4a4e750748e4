"""Strategies that several methods use: how the samples of one draw are generated."""
