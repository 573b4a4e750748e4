"""The default verifiers of packaged and published tasks."""

from collections.abc import Mapping

from groupwise.data import VerifierKind
from groupwise.tasks.presets import PRESETS
from groupwise.verifiers.beads import BeadString
from groupwise.verifiers.code import Code
from groupwise.verifiers.countdown import Countdown
from groupwise.verifiers.flow_states import QuiltPatches, RingDirection
from groupwise.verifiers.glyphs import GlyphPatches
from groupwise.verifiers.gym.reasoning_gym import ReasoningGym
from groupwise.verifiers.math.verifier import Math
from groupwise.verifiers.numbers import Exact, LastNumber
from groupwise.verifiers.proof_steps import ProofSteps
from groupwise.verifiers.spanning_graph import SpanningGraph
from groupwise.verifiers.sum_proposal import SumProposal
from groupwise.verifiers.sum_steps import CalculatorAnswer, SumSteps

__all__ = ["usual_verifier"]

USUAL: Mapping[str, VerifierKind] = {
    "beads": BeadString(),
    "big_sums": LastNumber(),
    "calculator": CalculatorAnswer(),
    "coin": Exact(),
    "countdown": Countdown(),
    "deduction": ProofSteps(),
    "delegated_sums": SumSteps(),
    "edges": SpanningGraph(),
    "glyphs": GlyphPatches(),
    "gsm8k": LastNumber(),
    "hinted_sums": SumSteps(),
    "largest": LastNumber(),
    "mixed_sums": SumSteps(price=0.02),
    "programs": Code(),
    "proposals": SumProposal(),
    "quilts": QuiltPatches(),
    "reasoning_gym": ReasoningGym(),
    "rings": RingDirection(),
    "tiny_countdown": Countdown(),
    "wordy_sums": SumSteps(),
}
"""The default verifiers by the names of their tasks. Other published data sets are mathematics."""


def usual_verifier(task: str) -> VerifierKind | None:
    """The default verifier of a packaged or published task; None for a user's data.

    >>> usual_verifier("gsm8k:data/gsm8k"), usual_verifier("rows.jsonl")
    (LastNumber(), None)
    """
    name = task.partition(":")[0]
    return USUAL.get(name, Math() if name in PRESETS else None)
