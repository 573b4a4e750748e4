"""Predicts a run's memory from its recipe and the model's sizes, before anything is loaded."""
