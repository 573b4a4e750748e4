"""Stops a run whose groups give no gradient, whose answers cannot be graded, or whose numbers go wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from groupwise.core import Diverged, LogprobMismatch, NoSignal, Unverifiable, counted
from groupwise.learner import NO_TOKEN
from groupwise.rollout import IterationRollouts

PATIENCE = 3
"""This many iterations in a row without a rollout to train on, or skipped steps in a row, stop a run."""
WINDOW = 20
"""The number of iterations over which the share of unverifiable answers is computed."""


@dataclass(slots=True)
class RunGuards:
    """Checks a run, with counts that checkpoints store. Each `check_` method raises an error beyond its limit."""

    max_unverifiable: float
    max_logprob_diff: float
    no_signal: int = 0
    all_correct_iterations: int = 0
    skipped_steps: int = 0
    answer_counts: list[tuple[int, int]] = field(default_factory=list)

    def check_rollouts(self, collected: IterationRollouts) -> bool:
        """Check the verdicts of an iteration, and its signal. Returns whether the task is solved."""
        self.check_verdicts(*collected.unverifiable, collected.culprit)
        return self.check_signal(len(collected.selected), collected.causes, all_right=collected.all_right)

    def check_verdicts(self, unverifiable: int, answers: int, cause: str, culprit: str = "verifier") -> None:
        """Count an iteration's answers and the unverifiable ones; raises `Unverifiable` if their share is too large.

        The share is over the last WINDOW iterations. A first iteration without a graded answer raises at once.
        `culprit` is the code to correct.
        """
        self.answer_counts = [*self.answer_counts, (unverifiable, answers)][-WINDOW:]
        failed, total = (sum(x) for x in zip(*self.answer_counts))
        first_failed = len(self.answer_counts) == 1 and answers and unverifiable == answers
        if first_failed or (len(self.answer_counts) == WINDOW and failed > self.max_unverifiable * total):
            over = counted(len(self.answer_counts), "iteration")
            raise Unverifiable(
                f"{failed} of {counted(total, 'answer')} were unverifiable over {over}",
                evidence=cause,
                fix=f"correct the {culprit}, or allow more with --max_unverifiable",
            )

    def check_signal(self, live: int, dropped: Mapping[str, int], *, all_right: bool = False) -> bool:
        """Count iterations in a row without a rollout to train on (`live`); PATIENCE of them raise `NoSignal`.

        Returns whether the task is solved, which raises nothing: no rollout is left to train on and every answer is
        correct, PATIENCE times in a row.
        """
        self.no_signal = 0 if live else self.no_signal + 1
        self.all_correct_iterations = self.all_correct_iterations + 1 if all_right and not live else 0
        if self.solved:
            return True
        if self.no_signal >= PATIENCE:
            raise NoSignal(
                f"{PATIENCE} iterations in a row had no group to train on",
                evidence=", ".join(f"{n} rollouts dropped: {cause}" for cause, n in sorted(dropped.items())),
                fix="use easier or harder problems, or raise method.group_size, sampling.temperature or "
                "method.max_refills",
            )
        return False

    @property
    def solved(self) -> bool:
        """Whether the task is solved, so that the run has ended."""
        return self.all_correct_iterations >= PATIENCE

    def forget_signal(self) -> None:
        """Reset the counts of iterations without a rollout to train on."""
        self.no_signal = self.all_correct_iterations = 0

    def check_steps(self, skipped: Sequence[str], where: str) -> None:
        """Count an iteration's skipped optimizer steps; too many in a row raise `Diverged`.

        Steps without an unmasked token do not count among other steps. An iteration of only such steps counts as one.
        """
        for cause in [cause for cause in skipped if cause != NO_TOKEN] or skipped[:1]:
            self.skipped_steps = self.skipped_steps + 1 if cause else 0
            if self.skipped_steps >= PATIENCE:
                raise Diverged(
                    f"{PATIENCE} optimizer steps in a row were skipped, which left the weights unchanged: {cause}",
                    evidence=f"the batches are in {where}",
                    fix="lower optimizer.lr, tighten the clip, or inspect the batches' log-probs and advantages; "
                    "if a mask removed every token, raise sampling.max_tokens or leave out the mask",
                )

    def check_gap(self, gap: float) -> None:
        """`LogprobMismatch` if `gap`, the largest log-prob difference of engine and learner, is too large."""
        if not gap <= self.max_logprob_diff:
            raise LogprobMismatch(
                f"engine and learner differ by {gap:.3g} in the log-prob of a token",
                evidence=f"the bound, engine.max_logprob_diff, is {self.max_logprob_diff:g}",
                fix="check that both have the same weights; if the gap is bfloat16's rounding, use machine.dtype "
                "float32, or raise engine.max_logprob_diff and correct the gap with a weight, as TruncatedImportance;\n"
                "if two experts of a mixture are nearly tied, use method.router_replay engine",
            )

    def state(self) -> dict[str, Any]:
        fields = asdict(self)
        return {
            name: fields[name] for name in ("no_signal", "all_correct_iterations", "skipped_steps", "answer_counts")
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.no_signal, self.all_correct_iterations, self.skipped_steps = (
            state["no_signal"],
            state["all_correct_iterations"],
            state["skipped_steps"],
        )
        self.answer_counts = [(a, b) for a, b in state["answer_counts"]]
