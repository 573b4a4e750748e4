"""The verifier of the package reasoning-gym."""
