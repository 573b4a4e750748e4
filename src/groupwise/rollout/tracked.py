"""`TrackedAnswers`: a sampling strategy with the prompt's tracked pass rate as baseline, instead of a group's mean."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Draw, Role, Rollout, Sample, Sampler, Strategy, verdicts_have
from groupwise.rollout.attempts import attempts
from groupwise.rollout.strategy import Independent
from groupwise.rollout.success_tracker import initial_rate

__all__ = ["TrackedAnswers"]


@verdicts_have("baseline", "drift")
@dataclass(frozen=True, slots=True)
class TrackedAnswers(Strategy):
    """Runs another strategy. The verdicts of its samples also have the part `baseline`, the tracked pass rate. SPO.

    The part `drift` is the mean absolute change of a token's log-prob since the prompt's last answer was sampled. At a
    prompt's first draw, `initial` more answers with the role `initial` estimate its success rate; they are not trained.
    For the curriculum `SuccessTracker`. arXiv:2509.13232.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("initial", "at the first draw of a prompt"),)

    initial: int = 8
    strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        context = draw.prompt.context
        baseline, initial = draw.memo.get("baseline"), list[Sample]()
        if baseline is None:
            initial = await attempts(sampler, context, self.initial, role="initial")
            baseline = initial_rate(initial)
        drift = await self._drift(draw, sampler)
        rollout = await self.strategy(draw, sampler)
        parts = {"baseline": baseline, "drift": drift}
        selected = rollout.selected and (*rollout.selected, *[True] * len(initial))
        samples = (*(s.add_parts(parts) for s in rollout.samples), *initial)
        return replace(rollout, samples=samples, selected=selected)

    async def _drift(self, draw: Draw, sampler: Sampler) -> float:
        """The mean absolute log-prob change of the tokens of the prompt's last answer; 0 if there are none."""
        tokens, old = tuple(draw.memo.get("tokens", ())), tuple(draw.memo.get("logp", ()))
        if not tokens:
            return 0.0
        last = Sample(context=draw.prompt.context, stream=(0,), tokens=tokens, origin=(0,) * len(tokens), logp=old)
        new = await sampler.score(last.context, last, temperature=sampler.sampling.temperature)
        return sum(abs(a - b) for a, b in zip(new, old, strict=True)) / len(tokens)
