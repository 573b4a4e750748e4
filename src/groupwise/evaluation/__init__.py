"""Held-out numbers with intervals, their protocol, and the protocols that papers used."""
