"""The verifier `math`: find the answer in a text, compare it exactly, leave algebra to math-verify."""

from groupwise.tasks.mathematics.verifier import Math

__all__ = ["Math"]
