"""Held-out accuracies and scores with intervals, the settings they depend on, and the settings that papers used."""
