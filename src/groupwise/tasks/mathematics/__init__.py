"""The verifier `math`: find the answer in a text, compare it exactly, or by algebra in the sandbox; and its peers."""

from groupwise.tasks.mathematics.variants import MathDapo, MathDrGrpo, MathVerify
from groupwise.tasks.mathematics.verifier import Math

__all__ = ["Math", "MathDapo", "MathDrGrpo", "MathVerify"]
