"""The verifier `math`: find the answer in a text, compare it exactly, or by algebra in the sandbox; and its peers."""

from groupwise.verifiers.math.variants import MathDapo, MathDrGrpo, MathVerify
from groupwise.verifiers.math.verifier import Math

__all__ = ["Math", "MathDapo", "MathDrGrpo", "MathVerify"]
