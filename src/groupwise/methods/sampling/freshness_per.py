"""FreshPER: stored answers are trained again, by their reward and their age."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, TypedDict

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import WhitenedTokens
from groupwise.data import (
    Aggregate,
    Batch,
    Curriculum,
    Draw,
    EqualWeightUnit,
    NeededMeasure,
    Rollout,
    Sample,
    Sampler,
    Strategy,
    Subscore,
    Task,
    Verdict,
    verdicts_have,
)
from groupwise.data.rollout_json import from_json, to_json
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import RandomPurpose, keyed_random
from groupwise.objective import Clip, DualClip, Objective, token_mean
from groupwise.rollout import Independent, Shuffled
from groupwise.rollout.curricula.shuffled import ShuffledState
from groupwise.rollout.strategies.multi_round import score_of

__all__ = ["FreshnessReplay", "ReplayStoredAnswer", "SubscoreScaledAggregate", "freshness_per"]


@dataclass(frozen=True, slots=True)
class SubscoreScaledAggregate(Aggregate):
    """The share (token weight) by another aggregate, times a subscore of the sample, such as a replay weight.

    The weights do not change the divisor. Prioritised replay, arXiv:1511.05952.
    """

    subscore: str
    base_aggregate: Aggregate = token_mean

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    @property
    def equal_weight_unit(self) -> EqualWeightUnit:
        return getattr(self.base_aggregate, "equal_weight_unit", "tokens")

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        share = self.base_aggregate(step)
        return share * step.sequences.spread(step[Subscore(self.subscore)]).to(share.dtype)


def stored(sample: Sample) -> dict[str, Any]:
    """A sample as it is stored: prompt, tokens, log-probs, text, and of the verdict outcome, score and subscores."""
    verdict = sample.verdict
    assert verdict is not None, "a stored sample has a verdict"
    kept = replace(
        sample, stream=(), routes=(), actions=(), top_logprobs=(), parent=None, token_marks={}, counts={},
        verdict=Verdict(verdict.outcome, verdict.score, verdict.subscores),
    )  # fmt: skip
    return to_json(kept)


LEAST = 1e-6
"""Added to each sampling priority `|score - centre|`, so that an answer with the score `centre` can be drawn."""


FLOOR = 1e-8
"""The least sampling priority, however old an answer is."""


class ReplayEntry(TypedDict):
    """A stored answer: problem index, priority before decay, number of the iteration that sampled it, the sample."""

    problem_index: int
    priority: float
    iteration: int
    sample: dict[str, Any]


class ReplayState(TypedDict):
    """State of `FreshnessReplay`: that of `Shuffled`, entries, iterations with new answers, replay rounds since."""

    shuffled_state: ShuffledState
    entries: list[ReplayEntry]
    fresh_iterations: int
    replay_rounds_done: int


@dataclass(frozen=True, slots=True)
class FreshnessReplay(Curriculum[ReplayState]):
    """After each round of new answers, `replay_rounds` rounds draw stored ones, by score and freshness. FreshPER.

    An answer's chance is proportional to `e ** alpha`, `e = |score - baseline_score| exp(-age / age_scale)`; its age
    counts sampled iterations. Its draw has the part `replay` for the strategy `ReplayStoredAnswer`, `(N P) ** -beta`
    over its largest value. A round without enough stored answers samples new ones. Draws are stratified and can repeat.
    With scores of 0 and 1, `baseline_score = 0.5` draws right and wrong answers alike. The oldest beyond `capacity` are
    dropped. Checkpoints have all entries: thousands of short answers, not more. FreshPER, arXiv:2604.16918.
    """

    required_strategy: ClassVar[str] = "ReplayStoredAnswer"
    replays_answers: ClassVar[bool] = True

    replay_rounds: int = 1
    capacity: int = 4096
    age_scale: float = 500.0
    alpha: float = 0.6
    beta: float = 0.4
    baseline_score: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.age_scale <= 0 or min(self.alpha, self.beta, self.replay_rounds) < 0:
            raise ValueError(f"{self}: needs capacity >= 1, age_scale > 0, and alpha, beta and replay_rounds >= 0")

    def init(self, task: Task, seed: int) -> ReplayState:
        return ReplayState(
            shuffled_state=Shuffled().init(task, seed),
            entries=[],
            fresh_iterations=0,
            replay_rounds_done=self.replay_rounds,
        )

    def draw(self, state: ReplayState, task: Task, n: int, group_size: int) -> tuple[ReplayState, list[Draw]]:
        entries, count = state["entries"], n * group_size
        if state["replay_rounds_done"] < self.replay_rounds and len(entries) >= count:
            random = keyed_random(
                (state["shuffled_state"]["seed"], RandomPurpose.CURRICULUM),
                state["fresh_iterations"],
                state["replay_rounds_done"],
            )
            chances, weights = self.weights(
                [(e["priority"], state["fresh_iterations"] - e["iteration"]) for e in entries]
            )
            chosen = stratified(chances, count, random)
            draws = [_again(entries[i], weights[i], task) for i in chosen]
            return {**state, "replay_rounds_done": state["replay_rounds_done"] + 1}, draws
        shuffled, indices = Shuffled().indices(state["shuffled_state"], task, n)
        draws = [Draw(0, task[i], group_size, {"index": i}) for i in indices]
        return {**state, "shuffled_state": shuffled, "replay_rounds_done": 0}, draws

    def observe(self, state: ReplayState, rollouts: Sequence[Rollout]) -> ReplayState:
        return state

    def end_iteration(self, state: ReplayState, rollouts: Sequence[Rollout]) -> ReplayState:
        fresh = [r for r in rollouts if "sample" not in r.draw.metadata]  # the others replay stored answers
        if rollouts and not fresh:
            return state
        now = state["fresh_iterations"] + 1
        new = [
            ReplayEntry(
                problem_index=r.draw.metadata["index"],
                priority=abs(score_of(s) - self.baseline_score) + LEAST,
                iteration=now,
                sample=stored(s),
            )
            for r in fresh
            for i, s in enumerate(r.samples)
            if s.role == "answer" and (r.selected is None or r.selected[i])
        ]
        return {**state, "fresh_iterations": now, "entries": [*state["entries"], *new][-self.capacity :]}

    def numbers(self, state: ReplayState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        replayed = sum("sample" in rollout.draw.metadata for rollout in rollouts)
        return {"stored": len(state["entries"]), "replayed": replayed}

    def weights(self, entries: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """For (priority, age) pairs: the probabilities to be drawn, and the importance weights, whose largest is 1.

        >>> chances, _ = FreshnessReplay().weights([(1.000001, 0), (1.000001, 500), (0.200001, 0), (1e-6, 0)])
        >>> [round(p, 6) for p in chances]
        [0.51819, 0.284389, 0.197291, 0.00013]
        """
        decayed = [max(priority * math.exp(-age / self.age_scale), FLOOR) ** self.alpha for priority, age in entries]
        total = math.fsum(decayed)
        chances = [x / total for x in decayed]
        weights = [(len(chances) * p) ** -self.beta for p in chances]
        largest = max(weights)
        return chances, [w / largest for w in weights]


def stratified(chances: Sequence[float], n: int, random: Random) -> list[int]:
    """Stratified sampling: `n` indices, one from each of n equal parts of the cumulated probabilities.

    >>> stratified([0.25, 0.25, 0.25, 0.25], 4, Random(0))
    [0, 1, 2, 3]
    """
    ends = list(accumulate(chances))
    return [min(bisect_right(ends, (i + random.random()) / n * ends[-1]), len(ends) - 1) for i in range(n)]


def _again(entry: ReplayEntry, weight: float, task: Task) -> Draw:
    metadata = {"index": entry["problem_index"], "sample": entry["sample"], "replay": weight}
    return Draw(0, task[entry["problem_index"]], 1, metadata)


@verdicts_have("replay")
@dataclass(frozen=True, slots=True)
class ReplayStoredAnswer(Strategy):
    """Returns the stored answer that the curriculum `FreshnessReplay` drew, with log-probs; else runs another strategy.

    The part `replay` of an answer is its importance weight, 1 for a new answer. Nothing is generated for a stored one.
    """

    inner_strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        weight = {"replay": float(draw.metadata.get("replay", 1.0))}
        if "sample" in draw.metadata:
            (empty,) = sampler.start(draw.prompt.token_ids)
            sample = replace(from_json(Sample, draw.metadata["sample"]), stream=empty.stream)
            return Rollout(draw, (sample.add_subscores(weight),))
        rollout = await self.inner_strategy(draw, sampler)
        return replace(rollout, samples=tuple(s.add_subscores(weight) for s in rollout.samples))


def freshness_per(
    *,
    group_size: int = 1,
    replays: int = 1,
    capacity: int = 4096,
    life: float = 500.0,
    alpha: float = 0.6,
    beta: float = 0.4,
    centre: float = 0.0,
    clip: float = 0.2,
    dual: bool = False,
    minibatches: int = 1,
) -> Method:
    """REINFORCE++ without KL; iterations of new answers take turns with stored ones, drawn by score and freshness.

    On-policy training uses each answer for one update, and plain prioritised replay can keep drawing old answers after
    the policy has changed. FreshPER multiplies the priority of a stored answer by a factor that decays exponentially
    with its age.

    Args:
        group_size: answers per prompt.
        replays: iterations with stored answers after each iteration with new ones.
        capacity: largest number of stored answers; the oldest are dropped.
        life: decay time of a priority in iterations with new answers, above 0, tau.
        alpha: exponent of the priority in the probability of a draw, at least 0; 0 draws uniformly.
        beta: exponent of the importance weight v, at least 0; 0 gives all answers the weight 1.
        centre: score with the lowest priority; the paper's is 0.
        clip: distance of both clip bounds from 1, eps.
        dual: whether a term with a negative advantage A is at least (1 + 2 clip) A.
        minibatches: optimizer steps per iteration.
    """
    surrogate = DualClip(clip, clip, negative_advantage_cap=1 + 2 * clip) if dual else Clip(clip, clip)
    return Method(
        group_size=group_size,
        curriculum=FreshnessReplay(replays, capacity, life, alpha, beta, centre),
        strategy=ReplayStoredAnswer(),
        credit=WhitenedTokens(ddof=0),
        objective=Objective(surrogate=surrogate, aggregate=SubscoreScaledAggregate("replay")),
        minibatches=minibatches,
        old_logprobs="engine",
    )


REFERENCE = PaperReference(
    paper="Freshness-Aware Prioritized Experience Replay for LLM/VLM Reinforcement Learning",
    arxiv="2604.16918",
    evidence="code read",
    code=(
        "Vision-CAIR/Freshness-Aware-PER@dbb91df453bdb2f2d70e92cc23582cfac0d39b66:"
        "roll/agentic/replay_buffer/priority_functions.py"
    ),
    parent="reinforce_pp",
    formula="""\
e_i = max(p_i exp(-age_i / tau), 1e-8), p_i = |R_i| + 1e-6; P(i) = e_i^alpha / sum_j e_j^alpha
v_i = (N P(i))^-beta / max_j (N P(j))^-beta
J = mean over tokens of v_i min[ r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t ],  r_t = pi / mu, mu as stored""",
    differences=(
        PaperDifference("tau, alpha", "500 (1000 for one task); 0.6", "configured; 0.6", "500; 0.6"),
        PaperDifference("beta", "0.4, annealed to 1", "0.4, constant", "0.4, constant"),
        PaperDifference("replays", "K per iteration, after its update", "1", "1: a separate iteration"),
        PaperDifference("capacity", "50,000", "100,000", "4096: checkpoints have all stored answers"),
        PaperDifference("age", "in training steps", "in training steps", "in iterations of new answers"),
        PaperDifference("mu", "of the behaviour policy", "of the learner at that time", "of the engine"),
        PaperDifference(
            "reward in the priority",
            "of the trajectory",
            "the last token's score",
            "the verdict's score, less centre = 0",
        ),
        PaperDifference(
            "new answers", "first with the largest priority", "the same, until the refresh", "their own priority"
        ),
        PaperDifference(
            "backbone", "REINFORCE++", "whitened, clipped at 0.2", "REINFORCE++ without KL, per answer; not clipped"
        ),
        PaperDifference("dual clip", "not read", "optional, 1 + 2 clip", "dual = true"),
        PaperDifference("group size, clip range, minibatches", "not read", "configured", "1, 0.2 and 1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[freshness_per]",
        "tests/golden/test_memory.py::test_priorities_fall_with_age",
        "tests/golden/test_memory.py::test_stored_answers_are_drawn_again",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="reinforce_pp",
        min_difference=0.02,
        runs_matched_by="tokens",
        settings=("prompts = 64", "method.minibatches = 1"),
        own_settings=("method.curriculum.baseline_score = 0.5",),
        acted="curriculum/replayed",
        acted_least=1.0,
    ),
    our_finding="With scores of 0 and 1 and the paper's priority, all replayed answers were correct on hinted_sums "
    "(one seed), so their whitened advantages are 0. With curriculum.baseline_score = 0.5, both are drawn "
    "alike. The effect's own setting was chosen after this run, before the runs that measure the effect.",
)
