"""The effect of each published method, measured against the method it changes: `make atlas`."""
