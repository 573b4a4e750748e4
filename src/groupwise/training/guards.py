"""What a run must not go on with: no signal, answers that cannot be judged, gradients or engines that went wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from groupwise.data import Diverged, Mismatch, NoSignal, Unverifiable
from groupwise.learner import NO_TOKEN

PATIENCE = 3
"""Iterations without signal, or optimizer steps without a finite gradient, in a row before the run stops."""
WINDOW = 20
"""Iterations over which the share of unverifiable answers is taken."""


@dataclass(slots=True)
class Guards:
    """Counts that survive a resume. Each `see_` method raises a typed error when its bound is passed."""

    max_unverifiable: float
    max_gap: float
    silent: int = 0
    skipped: int = 0
    judged: list[tuple[int, int]] = field(default_factory=list)

    def check_verdicts(self, unverifiable: int, answers: int, cause: str) -> None:
        """One iteration's answers: how many could not be judged, of how many, and the first cause."""
        self.judged = [*self.judged, (unverifiable, answers)][-WINDOW:]
        bad, total = (sum(x) for x in zip(*self.judged))
        first_failed_whole = len(self.judged) == 1 and answers and unverifiable == answers
        if first_failed_whole or (len(self.judged) == WINDOW and bad > self.max_unverifiable * total):
            raise Unverifiable(
                f"{bad} of {total} answers could not be judged over {len(self.judged)} iterations",
                evidence=cause,
                fix="mend the verifier, or allow more with --max_unverifiable",
            )

    def check_signal(self, live: int, dropped: Mapping[str, int]) -> None:
        """How many rollouts an iteration has to learn from, and why others were dropped."""
        self.silent = 0 if live else self.silent + 1
        if self.silent >= PATIENCE:
            raise NoSignal(
                f"{PATIENCE} iterations in a row brought no group to learn from",
                evidence=", ".join(f"{n} groups {cause}" for cause, n in sorted(dropped.items())),
                fix="take easier or harder problems, a larger group_size, a higher temperature, or more refill rounds",
            )

    def check_steps(self, skipped: Sequence[str], where: str) -> None:
        """Why each optimizer step of an iteration was skipped; empty where it was taken.

        Steps whose tokens were all masked are no fault beside others: an iteration of nothing else counts as one.
        """
        for cause in [cause for cause in skipped if cause != NO_TOKEN] or skipped[:1]:
            self.skipped = self.skipped + 1 if cause else 0
            if self.skipped >= PATIENCE:
                raise Diverged(
                    f"{PATIENCE} optimizer steps in a row had to be skipped: {cause}",
                    evidence=f"the batches stand in {where}",
                    fix="lower optimizer.lr, tighten the clip, or look at the batches' log-probs and advantages; "
                    "where a mask took every token, raise sampling.max_tokens or leave the mask out",
                )

    def check_gap(self, gap: float) -> None:
        """The largest difference between engine's and learner's log-prob of a token."""
        if not gap <= self.max_gap:
            raise Mismatch(
                f"engine and learner differ by {gap:.3g} in the log-prob of a token",
                evidence=f"the bound, engine.max_gap, is {self.max_gap:g}",
                fix="see that both have the same weights; where bfloat16's rounding comes to this much, take "
                "machine.dtype float32, or raise engine.max_gap and correct with a weight such as TruncatedImportance",
            )

    def state(self) -> dict[str, Any]:
        kept = asdict(self)
        return {name: kept[name] for name in ("silent", "skipped", "judged")}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.silent, self.skipped = state["silent"], state["skipped"]
        self.judged = [(a, b) for a, b in state["judged"]]
