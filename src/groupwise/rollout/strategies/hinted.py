"""Sampling strategies that answer hard problems again with a hint."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from groupwise.data import Draw, Ids, Role, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import AUTO, ModelDependentDefault, check_wording
from groupwise.rollout.strategies.hints import HintSource, RowHints
from groupwise.rollout.strategies.multi_round import (
    attempts,
    context_of,
    is_correct,
    none_correct,
    trained_under,
    with_role,
)

__all__ = ["HintEscalation", "HintScaffold"]

HINTED = ModelDependentDefault(
    "{problem}{hint}{problem}",
    "Question:\n{problem}\n\nHere is a hint to help you:\n{hint}",
    "BaohaoLiao/SAGE, recipe/hint/hint_trainer.py, 8722c1a",
)
"""The prompt with a hint. In the packaged form the problem is repeated: the answer is whole without the hint."""


@dataclass(frozen=True, slots=True)
class HintEscalation(Strategy):
    """Samples answers; while none is correct and hints are left, samples a new group with the next hint. SAGE.

    arXiv:2602.03143. At most `max_hints` hints are tried. The group is trained under the hinted prompt that it was
    sampled with; with `trained_prompt = "plain"` under the plain one (Guide-GRPO, arXiv:2506.13923). The failed groups
    get the role `tried`. Without a hint that leaves room, the failed group stays.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("tried", "where no answer is correct", in_failed_rollouts="often"),)
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"prompt_template": HINTED}

    hints: HintSource = RowHints()  # noqa: RUF009
    max_hints: int = 3
    trained_prompt: Literal["hinted", "plain"] = "hinted"
    prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "hint"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        group = await attempts(sampler, draw.prompt.token_ids, draw.n)
        failures: list[Sample] = []
        if none_correct(group):
            hints, sources = await self.hints(draw, sampler)
            failures += sources
            for context in _contexts(hints[: self.max_hints], self.prompt_template, draw, sampler):
                failures += group
                group = await attempts(sampler, context, draw.n)
                if not none_correct(group):
                    break
        if self.trained_prompt == "plain":
            plain = draw.prompt.token_ids
            group = [s if s.context == plain else trained_under(s, plain) for s in group]
        return Rollout(draw, (*with_role(failures, "tried"), *group))


@dataclass(frozen=True, slots=True)
class HintScaffold(Strategy):
    """Samples answers; if none is correct, samples one with each hint. The first correct one replaces a wrong answer.

    Hints are from weak to strong, so the weakest that helps is taken. Scaf-GRPO, arXiv:2510.19807. `hints_active` is 0
    in its warm-up, by a schedule.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("tried", "where no answer is correct", in_failed_rollouts="often"),)
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"prompt_template": HINTED}

    hints: HintSource = RowHints()  # noqa: RUF009
    hints_active: float = 1.0
    prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "hint"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        group = await attempts(sampler, draw.prompt.token_ids, draw.n)
        if not self.hints_active or not none_correct(group):
            return Rollout(draw, tuple(group))
        hints, sources = await self.hints(draw, sampler)
        contexts = _contexts(hints, self.prompt_template, draw, sampler)
        answers = [s for one in await together(attempts(sampler, c, 1) for c in contexts) for s in one]
        first = next((s for s in answers if is_correct(s)), None)
        failures = with_role((*sources, *(s for s in answers if s is not first)), "tried")
        return Rollout(draw, (*failures, *group) if first is None else (*failures, first, *group[1:]))


def _contexts(hints: list[str], prompt_template: str, draw: Draw, sampler: Sampler) -> list[Ids]:
    """One prompt per hint, without hints that are empty or leave no room for an answer."""
    values = [{"problem": draw.prompt.text, "hint": hint} for hint in hints if hint]
    return [context for v in values if (context := context_of(sampler, prompt_template, v))]
