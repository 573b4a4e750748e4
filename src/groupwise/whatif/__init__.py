"""Computes what other methods would have done with a run's stored samples: rewards, advantages, gradients."""
