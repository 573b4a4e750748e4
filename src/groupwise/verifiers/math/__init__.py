"""The verifier `math`, and the published graders of math-verify, DAPO and Dr. GRPO."""

from groupwise.verifiers.math.published_graders import MathDapo, MathDrGrpo, MathVerify
from groupwise.verifiers.math.verifier import Math

__all__ = ["Math", "MathDapo", "MathDrGrpo", "MathVerify"]
