"""The default verifiers of packaged and published tasks."""

from collections.abc import Mapping

from groupwise.data import TaskSettings, VerifierSettings
from groupwise.tasks import (
    Beads,
    BigSums,
    Calculator,
    Coin,
    Deduction,
    DelegatedSums,
    Edges,
    Glyphs,
    HintedSums,
    Largest,
    MixedSums,
    Programs,
    ProposedSums,
    PublishedSet,
    Quilts,
    ReasoningGym,
    Rings,
    Shapes,
    TinyCountdown,
    WordySums,
)
from groupwise.verifiers.beads import BeadString
from groupwise.verifiers.code import Code
from groupwise.verifiers.countdown import Countdown
from groupwise.verifiers.exact_and_last_number import Exact, LastNumber
from groupwise.verifiers.flow_states import QuiltPatches, RingPointDirection
from groupwise.verifiers.glyphs import GlyphPatches
from groupwise.verifiers.gym.reasoning_gym import GymScore
from groupwise.verifiers.math.math_verifier import Math
from groupwise.verifiers.proof_steps import ProofSteps
from groupwise.verifiers.spanning_graph import SpanningGraph
from groupwise.verifiers.sum_proposal import SumWithProposal
from groupwise.verifiers.sum_steps import CalculatorAnswer, SumSteps

__all__ = ["usual_verifier"]

USUAL: Mapping[type[TaskSettings], VerifierSettings] = {
    Beads: BeadString(),
    BigSums: LastNumber(),
    Calculator: CalculatorAnswer(),
    Coin: Exact(),
    Deduction: ProofSteps(),
    DelegatedSums: SumSteps(),
    Edges: SpanningGraph(),
    Glyphs: GlyphPatches(),
    HintedSums: SumSteps(),
    Largest: LastNumber(),
    MixedSums: SumSteps(step_price=0.02),
    Programs: Code(),
    ProposedSums: SumWithProposal(),
    Quilts: QuiltPatches(),
    ReasoningGym: GymScore(),
    Rings: RingPointDirection(),
    Shapes: Exact(),
    TinyCountdown: Countdown(),
    WordySums: SumSteps(),
}
"""The default verifiers of the packaged tasks."""
PUBLISHED: Mapping[str, VerifierSettings] = {"countdown": Countdown(), "gsm8k": LastNumber()}
"""The default verifiers of published data sets by name. The others are mathematics."""


def usual_verifier(task: TaskSettings) -> VerifierSettings | None:
    """The default verifier of a packaged or published task; None for a user's data.

    >>> from groupwise.tasks import DataRows
    >>> usual_verifier(PublishedSet("gsm8k")), usual_verifier(DataRows("rows.jsonl"))
    (LastNumber(), None)
    """
    return PUBLISHED.get(task.name, Math()) if isinstance(task, PublishedSet) else USUAL.get(type(task))
