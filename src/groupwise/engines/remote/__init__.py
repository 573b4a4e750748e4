"""Engines in other processes: fleets, wire, TLS, weights, and how they start and end."""
