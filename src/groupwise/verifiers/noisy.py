"""The verifier `NoisyVerdicts`: makes some verdicts of another verifier wrong, at known rates."""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import ClassVar

from groupwise.core import check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict
from groupwise.verifiers.verdict_wrapper import VerdictWrapper

__all__ = ["NoisyVerdicts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyVerdicts(VerdictWrapper):
    """Rejects right answers with probability `false_reject_rate`, accepts wrong ones with `false_accept_rate`.

    The errors are keyed by `seed`, problem and text: the same answer always gets the same verdict, in any order and
    after a resume. Malformed, unverifiable and scored answers keep theirs. A flipped verdict has no score.

    A share `appealed_rejection_fraction` of the rejected answers is checked again, without error. Subscores: `truth` (1
    for a right answer), `appealed`, and `overturned` (appealed, and in truth right). The outcome stays as it was
    flipped.

    >>> import asyncio
    >>> from groupwise.verifiers import Exact, VerifierContext
    >>> strict = NoisyVerdicts(verifier=Exact(), false_reject_rate=1.0).build(VerifierContext())
    >>> verdict = asyncio.run(strict(Prompt("p", (), "2+2=", {"answer": 4}), Sample(context=(), stream=(0,), text="4")))
    >>> verdict.outcome.name, verdict.subscores["truth"]
    ('wrong', 1.0)
    """

    added_subscores: ClassVar[tuple[str, ...]] = ("truth", "appealed", "overturned")
    false_reject_rate: float = 0.0
    false_accept_rate: float = 0.0
    appealed_rejection_fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        rates = {
            "false_reject_rate": self.false_reject_rate,
            "false_accept_rate": self.false_accept_rate,
            "appealed_rejection_fraction": self.appealed_rejection_fraction,
        }
        if invalid := [f"{name}={rate}" for name, rate in rates.items() if not 0 <= rate <= 1]:
            raise ValueError(f"{', '.join(invalid)}\na probability lies between 0 and 1")

    def change(self, prompt: Prompt, sample: Sample, verdict: Verdict) -> Verdict:
        """Flip the verdict's outcome with the given probability, and record the truth in its subscores."""
        judged, right = verdict.outcome in (Outcome.correct, Outcome.wrong), verdict.outcome is Outcome.correct
        flipped = judged and self._number("flip", prompt, sample) < (
            self.false_reject_rate if right else self.false_accept_rate
        )
        rejected = judged and right is flipped
        appealed = rejected and self._number("appeal", prompt, sample) < self.appealed_rejection_fraction
        parts = {"truth": float(right), "appealed": float(appealed), "overturned": float(appealed and right)}
        verdict = replace(verdict, subscores={**verdict.subscores, **parts})
        return replace(verdict, outcome=Outcome(int(not right)), score=None) if flipped else verdict

    def _number(self, purpose: str, prompt: Prompt, sample: Sample) -> float:
        """A pseudo-random number from 0 to 1, determined by `purpose`, `seed`, the problem and the answer."""
        text = "\0".join((purpose, str(self.seed), prompt.id, sample.text))
        return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]) / 2**64
