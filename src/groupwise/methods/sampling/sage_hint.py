"""SAGE: hints that the policy writes itself, where a group has no correct answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypedDict

from groupwise.advantages import Standardised
from groupwise.data import Curriculum, Draw, Role, Rollout, Sample, Sampler, Strategy, Task
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import (
    AUTO,
    HintEscalation,
    HintSource,
    Independent,
    ModelDependentDefault,
    RowHints,
    Shuffled,
    check_wording,
    fill,
    text_of,
)
from groupwise.rollout.curricula.shuffled import ShuffledState
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import UNWORDED
from groupwise.rollout.strategies.hinted import HINTED
from groupwise.rollout.strategies.multi_round import context_of, graded, prompt_of, with_role

__all__ = ["HintAtLevelStrategy", "HintLevelCurriculum", "PolicyWrittenHints", "sage_hint"]


@dataclass(frozen=True, slots=True)
class HintAtLevelStrategy(Strategy):
    """Runs another strategy on the prompt with the hint of its level (`HintLevelCurriculum`); level 0 is no hint.

    SAGE-light.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("tried", "where the policy writes the hints"),)
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"prompt_template": HINTED}

    hints: HintSource = RowHints()  # noqa: RUF009
    prompt_template: str = AUTO
    inner_strategy: Strategy = Independent()  # noqa: RUF009

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "hint"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        level, prompt = int(draw.metadata.get("level", 0)), draw.prompt
        sources: list[Sample] = []
        if level:
            hints, sources = await self.hints(draw, sampler)
            if hints := [hint for hint in hints if hint]:
                text = fill(self.prompt_template, {"problem": prompt.text, "hint": hints[min(level, len(hints)) - 1]})
                context = prompt_of(sampler, text)
                prompt = replace(prompt, token_ids=context, text=text) if context else prompt
        rollout = await self.inner_strategy(replace(draw, prompt=prompt), sampler)
        selected = rollout.selected and (*rollout.selected, *[False] * len(sources))
        samples = (*rollout.samples, *with_role(sources, "tried"))
        return replace(rollout, draw=replace(rollout.draw, prompt=draw.prompt), samples=samples, selected=selected)


ASKED = ModelDependentDefault(
    "{solution};{problem}",
    "You are a tutoring assistant that generates progressive hints to help students solve difficult problems without "
    "revealing the solution directly.\n\n"
    "GUIDELINES:\n- Never reveal the final answer\n"
    "- Hints should inspire problem-solving, not just provide steps to copy\n\n"
    "Question: \n{problem}\n\nSolution:\n{solution}\n\nWrite one hint for this question, and nothing else.",
    "BaohaoLiao/SAGE, recipe/hint/prompt.py, 9caab74, shortened: it asks for three hints as JSON",
)
"""The prompt for a hint."""


@dataclass(frozen=True, slots=True)
class PolicyWrittenHints(HintSource):
    """Hints that the policy writes from the solution in the data row, each with a higher length limit. SAGE.

    One answer per level, of at most `tokens_per_level` tokens times the level; `auto` is 8, or 64 in prose. Without a
    solution there are no hints. arXiv:2602.03143.
    """

    column_type: ClassVar[str] = "text"
    column_optional: ClassVar[bool] = True
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {
        "tokens_per_level": ModelDependentDefault(8, 64),
        "prompt_template": ASKED,
    }

    max_level: int = 3
    tokens_per_level: int | Literal["auto"] = AUTO
    solution_column: str = "solution"
    prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "solution"))

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.solution_column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]:
        if not (solution := text_of(draw, self.solution_column, self)):
            return [], []
        assert self.tokens_per_level != AUTO, UNWORDED
        context = context_of(sampler, self.prompt_template, {"problem": draw.prompt.text, "solution": solution})
        if not context:
            return [], []
        starts = sampler.start(context, self.max_level, role="hint")
        answers = await together(sampler.extend(s, limit=self.tokens_per_level * (i + 1)) for i, s in enumerate(starts))
        return [s.text for s in answers], list(answers)


class HintLevelState(TypedDict):
    """State of `HintLevelCurriculum`: the state of `Shuffled`, and the hint levels above 0 of prompts, by their ids."""

    shuffled_state: ShuffledState
    levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class HintLevelCurriculum(Curriculum[HintLevelState]):
    """Draws prompts in random order, and passes each prompt's hint level to the strategy as `Draw.metadata["level"]`.

    SAGE-light, arXiv:2602.03143. A pass rate of at most `raise_level_pass_rate` raises the level of a prompt by one,
    one above `lower_level_pass_rate` lowers it. Unverifiable answers do not count.
    """

    tracks_prompts: ClassVar[bool] = True
    required_strategy: ClassVar[str] = "HintAtLevelStrategy"

    raise_level_pass_rate: float = 0.1
    lower_level_pass_rate: float = 0.35
    max_level: int = 3

    def init(self, task: Task, seed: int) -> HintLevelState:
        return HintLevelState(shuffled_state=Shuffled().init(task, seed), levels={})

    def draw(self, state: HintLevelState, task: Task, n: int, group_size: int) -> tuple[HintLevelState, list[Draw]]:
        shuffled, draws = Shuffled().draw(state["shuffled_state"], task, n, group_size)
        levels = state["levels"]
        draws = [replace(draw, metadata={"level": levels.get(draw.prompt.id, 0)}) for draw in draws]
        return HintLevelState(shuffled_state=shuffled, levels=levels), draws

    def observe(self, state: HintLevelState, rollouts: Sequence[Rollout]) -> HintLevelState:
        levels = dict(state["levels"])
        for rollout in rollouts:
            if outcomes := graded(rollout.samples):
                rate = sum(outcomes) / len(outcomes)
                prompt = rollout.draw.prompt.id
                level = (
                    levels.get(prompt, 0) + (rate <= self.raise_level_pass_rate) - (rate > self.lower_level_pass_rate)
                )
                levels[prompt] = min(max(level, 0), self.max_level)
        return HintLevelState(shuffled_state=state["shuffled_state"], levels={k: v for k, v in levels.items() if v})

    def end_iteration(self, state: HintLevelState, rollouts: Sequence[Rollout]) -> HintLevelState:
        return state

    def numbers(self, state: HintLevelState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"hinted": sum(rollout.draw.metadata.get("level", 0) > 0 for rollout in rollouts)}


def sage_hint(
    *,
    group_size: int = 8,
    levels: int = 3,
    form: Literal["escalate", "light"] = "escalate",
    least: float = 0.1,
    most: float = 0.35,
    minibatches: int = 2,
) -> Method:
    """GRPO; failed problems are answered again with hints that the policy wrote, and trained with the hinted prompt.

    If all answers to a hard prompt are wrong, their advantages are 0 and the prompt teaches nothing. SAGE lets the
    policy write hints from a reference solution, and both samples and trains the group with the hint, so training stays
    on-policy. The length limit of a hint is our reading.

    Args:
        group_size: answers per prompt in each group.
        levels: number of hint levels, L.
        form: `escalate` samples again with a hint after a failed group; `light` samples once at the prompt's level.
        least: pass rate up to which `light` raises a prompt's level.
        most: pass rate above which `light` lowers a prompt's level.
        minibatches: optimizer steps per iteration.
    """
    hints = PolicyWrittenHints(levels)
    light = form == "light"
    return Method(
        group_size=group_size,
        curriculum=HintLevelCurriculum(least, most, levels) if light else Shuffled(),
        strategy=HintAtLevelStrategy(hints) if light else HintEscalation(hints, levels),
        advantage=(Standardised(ddof=0),),
        objective=Objective(surrogate=Clip(0.2, 0.28), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Self-Hinting Language Models Enhance Reinforcement Learning",
    arxiv="2602.03143",
    evidence="code read",
    code="BaohaoLiao/SAGE@8722c1a3aa5bfe5578df8aaf302741a9715a56a2:recipe/hint/hint_trainer.py",
    parent="dapo",
    formula="""\
level 0: a group from pi_old(. | x); while no answer is correct and l < L: a new group from pi_old(. | x, h_l)
h_l from pi_old(. | x, solution); the last group is trained under its own prompt
light: one group at the level of the prompt, which rises at a pass rate of 0.1 and falls above 0.35""",
    differences=(
        PaperDifference("hints", "one call per level", "all levels in one call, as JSON", "one call per level"),
        PaperDifference(
            "length of a hint", "not specified", "by words in the prompt", "8 tokens per level, 64 in prose (inferred)"
        ),
        PaperDifference("std of a group", "ddof 0", "ddof 0", "ddof 0, plus 1e-6"),
        PaperDifference("clip range, minibatches", "0.2 and 0.28; 2", "0.2 and 0.28; 2", "0.2 and 0.28; 2"),
        PaperDifference("levels, group size", "3 and 8", "3 and 8", "3 and 8"),
        PaperDifference("light: pass rates", "0.35", "0.1 and 0.35", "0.1 and 0.35"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[sage_hint]",
        "tests/golden/test_rollout.py::test_escalation_asks_until_one_is_correct",
        "tests/golden/test_rollout.py::test_self_hints",
        "tests/golden/test_rollout.py::test_ladder_levels",
        "tests/golden/test_rollout.py::test_light_raises_the_level_up_to_a_tenth_and_lowers_it_above_0_35",
    ),
    expected_effect=ExpectedEffect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.1,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.objective.penalties = []"),
        acted="rollout/other_prompt",
        acted_least=1.0,
    ),
)
