"""VADE: variance-aware dynamic sampling of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal, TypedDict

from groupwise.advantages import Standardised
from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import REPEATED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import RandomPurpose, keyed_random
from groupwise.objective import KL, Clip, Objective, group_mean
from groupwise.rollout.curricula.shuffled import check_prompts
from groupwise.rollout.strategies.multi_round import graded

__all__ = ["ThompsonSampling", "vade"]

Counts = list[float]
"""Decayed numbers of correct and of other answers to a prompt."""


class ThompsonState(TypedDict):
    """State of `ThompsonSampling`: counts by the prompt's index; prompts without counts were never drawn."""

    seed: int
    drawn_count: int
    iteration_prompts: list[int]
    """The prompts drawn in the current iteration; a refill round draws others."""
    counts: dict[str, Counts]


@dataclass(frozen=True, slots=True)
class ThompsonSampling(Curriculum[ThompsonState]):
    """The prompts with the largest `p (1 - p)^2`, where p is drawn from a posterior of the prompt's success rate. VADE.

    The posterior is `Beta(1 + correct, 1 + others)`. After an iteration the counts of its prompts are multiplied by
    `drawn_prompt_outcome_decay` before their answers are added, and those of all other prompts by
    `other_prompt_outcome_decay`. So estimates follow the policy, and a prompt that is solved today returns later.
    arXiv:2511.18902. `ranking_criterion = "variance"` ranks by `p (1 - p)`; `sample_posterior = False` takes the
    posterior's mean as p.
    """

    tracks_prompts: ClassVar[bool] = True

    drawn_prompt_outcome_decay: float = 0.2
    other_prompt_outcome_decay: float = 0.999
    ranking_criterion: Literal["gain", "variance"] = "gain"
    sample_posterior: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.drawn_prompt_outcome_decay <= self.other_prompt_outcome_decay <= 1:
            raise ValueError(
                f"{self}: the decays are out of range\n"
                "take 0 <= drawn_prompt_outcome_decay <= other_prompt_outcome_decay <= 1"
            )

    def init(self, task: Task, seed: int) -> ThompsonState:
        return ThompsonState(seed=seed, drawn_count=0, iteration_prompts=[], counts={})

    def draw(self, state: ThompsonState, task: Task, n: int, group_size: int) -> tuple[ThompsonState, list[Draw]]:
        check_prompts(task)
        random = keyed_random((state["seed"], RandomPurpose.CURRICULUM), state["drawn_count"])
        worth = [self.worth(self._rate(state["counts"].get(str(i), [0.0, 0.0]), random)) for i in range(len(task))]
        drawn = set(state["iteration_prompts"])
        chosen = sorted((i for i in range(len(task)) if i not in drawn), key=lambda i: -worth[i])[:n]
        draws = [Draw(0, task[i], group_size, metadata={"index": i}) for i in chosen]
        return {
            **state,
            "drawn_count": state["drawn_count"] + n,
            "iteration_prompts": [*state["iteration_prompts"], *chosen],
        }, draws

    def observe(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> ThompsonState:
        return state

    def end_iteration(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> ThompsonState:
        counts = {key: [self.other_prompt_outcome_decay * x for x in pair] for key, pair in state["counts"].items()}
        for rollout in rollouts:
            key, answers = str(rollout.draw.metadata["index"]), graded(rollout.samples)
            correct, others = (self.drawn_prompt_outcome_decay * x for x in state["counts"].get(key, [0.0, 0.0]))
            counts[key] = [correct + sum(answers), others + len(answers) - sum(answers)]
        return {**state, "iteration_prompts": [], "counts": counts}

    def numbers(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"known": len(state["counts"])}

    def _rate(self, counts: Counts, random: Random) -> float:
        a, b = (1 + x for x in counts)
        return random.betavariate(a, b) if self.sample_posterior else a / (a + b)

    def worth(self, p: float) -> float:
        """The value of training on a prompt with the pass rate p.

        >>> round(ThompsonSampling().worth(0.5), 6)
        0.125
        """
        return p * (1 - p) ** (2 if self.ranking_criterion == "gain" else 1)


def vade(
    *,
    group_size: int = 8,
    fast: float = 0.2,
    slow: float = 0.999,
    value: Literal["gain", "variance"] = "gain",
    sampled: bool = True,
    clip: float = 0.2,
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO on the prompts that promise the largest gain, by Thompson sampling of each prompt's success rate.

    Groups with equal rewards give no gradient, filters find them only after sampling, and fixed difficulty labels can
    become outdated. VADE updates a posterior of each prompt's success rate with the training answers, and selects
    prompts by the value of a rate drawn from it. The decays and the counts at the start are our reading.

    Args:
        group_size: answers per prompt, G.
        fast: factor of the counts of drawn prompts, from 0 to `slow`, l1.
        slow: factor of the counts of all other prompts, from `fast` to 1, l2.
        value: value of a rate p: `gain`, p (1 - p)^2, or `variance`, p (1 - p).
        sampled: whether p is drawn from the posterior; otherwise it is the posterior's mean.
        clip: distance of both clip bounds from 1.
        kl: weight of the KL penalty to the initial policy.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        curriculum=ThompsonSampling(fast, slow, value, sampled),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper=("VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL"),
    arxiv="2511.18902",
    evidence="paper read",
    parent="grpo",
    formula="""\
p_i from Beta(a_i + 1, b_i + 1);  a batch is the B prompts with the largest p_i (1 - p_i)^2
drawn: a <- l1 a + c, b <- l1 b + G - c;  not drawn: a <- l2 a, b <- l2 b""",
    differences=(
        PaperDifference("what was read", "the framework figure and its caption", "not found", "both"),
        PaperDifference(
            "decays l1, l2", "those of the figure's numbers: 0.2, 0.999", "not found", "0.2, 0.999 (inferred)"
        ),
        PaperDifference("counts at the start", "not obtained", "not found", "0: the first draw is uniform (inferred)"),
        PaperDifference("base", "GRPO or GSPO", "not found", "GRPO; curriculum is one field of any method"),
        PaperDifference("with a filter and refills", "no refills", "not found", "a refill draws other prompts"),
        PaperDifference(
            "ablations", "p (1 - p); the posterior's mean", "not found", 'value = "variance"; sampled = false'
        ),
        PaperDifference("clip range, KL coefficient", "not obtained", "not found", "0.2, 0.04 (inferred)"),
        PaperDifference("group size, minibatches", "8 in the figure; not obtained", "not found", "8; 1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[vade]",
        "tests/golden/test_budgets.py::test_posterior_counts",
        "tests/golden/test_budgets.py::test_value_of_a_success_rate",
    ),
    expected_effect=ExpectedEffect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=REPEATED_SUMS,
        acted="curriculum/known",
        acted_least=1.0,
    ),
)
