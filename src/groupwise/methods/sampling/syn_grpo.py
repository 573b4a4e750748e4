"""Syn-GRPO: the policy proposes problems, and is rewarded for diverse answers to them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict, runtime_checkable

from groupwise.advantages import Standardised
from groupwise.data import (
    Curriculum,
    Draw,
    NeededMeasure,
    Prompt,
    Rollout,
    Sampler,
    Strategy,
    Subscore,
    Task,
    verdicts_have,
)
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean
from groupwise.rewards import AddSubscore, AddWellFormed, Score
from groupwise.rollout import Independent, Shuffled
from groupwise.rollout.curricula.shuffled import ShuffledState
from groupwise.rollout.strategies.multi_round import prompt_of, score_of
from groupwise.tasks import proposed_problem
from groupwise.tasks.sums import worked

__all__ = [
    "ProposalCollectingStrategy",
    "ProposalParser",
    "ProposedProblem",
    "ProposedProblemCurriculum",
    "SumProposalParser",
    "syn_grpo",
]


class ProposedProblem(NamedTuple):
    """A problem that an answer proposes: its text, the columns of its row, and its kind."""

    text: str
    row: Mapping[str, Any]
    kind: str


@runtime_checkable
class ProposalParser(Protocol):
    """Extracts a proposed problem from an answer's text; None if there is none that can be graded.

    `row` must be JSON. `kind` groups proposals that should be about equally diverse, such as by difficulty.
    """

    __slots__ = ()

    @abstractmethod
    def propose(self, text: str) -> ProposedProblem | None: ...


@dataclass(frozen=True, slots=True)
class SumProposalParser(ProposalParser):
    """Extracts the new sum at the end of an answer to the task `proposed_sums`. Its kind is its number of operands.

    It needs the subscore `proposed`, since only a verifier that gives it grades such answers.

    >>> SumProposalParser().propose("7*5=35;#35;2+9*3=").row["answer"], SumProposalParser().propose("#35;2+9*3=").kind
    (33, '3')
    """

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore("proposed")})

    def propose(self, text: str) -> ProposedProblem | None:
        problem = proposed_problem(text)
        return ProposedProblem(problem, worked(problem), str(len(problem) // 2)) if problem else None


@verdicts_have("diverse")
@dataclass(frozen=True, slots=True)
class ProposalCollectingStrategy(Strategy):
    """Runs another strategy, and collects the new problems that its answers propose, for `ProposedProblemCurriculum`.

    The subscore `diverse` of an answer is the expected diversity of its proposal's kind, from the draw's metadata; 0
    without a proposal. Problems that leave no room for an answer are left out. Syn-GRPO, arXiv:2511.19343.
    """

    inner_strategy: Strategy = Independent()  # noqa: RUF009
    proposal_parser: ProposalParser = SumProposalParser()

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.inner_strategy(draw, sampler)
        diverse = draw.metadata.get("diverse", {})
        proposals = [self.proposal_parser.propose(s.text) if s.role == "answer" else None for s in rollout.samples]
        expected = (diverse.get(p.kind, 0.0) if p else 0.0 for p in proposals)
        samples = tuple(s.add_subscores({"diverse": x}) for s, x in zip(rollout.samples, expected))
        distinct = {p.text: p for p in proposals if p}
        problems = [{**p._asdict(), "context": c} for p in distinct.values() if (c := prompt_of(sampler, p.text))]
        return Rollout(
            replace(draw, metadata={**draw.metadata, "proposals": problems}), samples, rollout.selected, rollout.cause
        )


class ProposedProblemState(TypedDict):
    """State of `ProposedProblemCurriculum`: that of `Shuffled`, waiting proposals, mean diversity, also by kind."""

    shuffled_state: ShuffledState
    waiting_proposals: list[dict[str, Any]]
    mean_diversity: float | None
    diversity_by_kind: dict[str, float]


@dataclass(frozen=True, slots=True)
class ProposedProblemCurriculum(Curriculum[ProposedProblemState]):
    """Draws prompts in random order; up to `max_proposal_fraction` are those that `ProposalCollectingStrategy` found.

    The diversity of a problem is the std of its answers' scores. Relative to the usual one it is `clip((std - usual) /
    usual, -1, 1)`; averages per kind of problem are `diverse` of the metadata. All averages start at their first value
    and move by `diversity_ema_rate`. At most `max_waiting_proposals` problems wait, the newest. Syn-GRPO,
    arXiv:2511.19343; crediting a proposal by its kind is our reading.
    """

    required_strategy: ClassVar[str] = "ProposalCollectingStrategy"

    max_proposal_fraction: float = 0.5
    diversity_ema_rate: float = 0.05
    max_waiting_proposals: int = 256

    def __post_init__(self) -> None:
        if not (
            0 <= self.max_proposal_fraction <= 1
            and 0 < self.diversity_ema_rate <= 1
            and self.max_waiting_proposals >= 1
        ):
            raise ValueError(
                f"{self}: needs 0 <= max_proposal_fraction <= 1, 0 < diversity_ema_rate <= 1 "
                "and max_waiting_proposals >= 1"
            )

    def init(self, task: Task, seed: int) -> ProposedProblemState:
        return ProposedProblemState(
            shuffled_state=Shuffled().init(task, seed), waiting_proposals=[], mean_diversity=None, diversity_by_kind={}
        )

    def draw(
        self, state: ProposedProblemState, task: Task, n: int, group_size: int
    ) -> tuple[ProposedProblemState, list[Draw]]:
        new = min(int(self.max_proposal_fraction * n), len(state["waiting_proposals"]))
        proposed, waiting = state["waiting_proposals"][:new], state["waiting_proposals"][new:]
        shuffled, indices = Shuffled().indices(state["shuffled_state"], task, n - new)
        metadata = {"diverse": dict(state["diversity_by_kind"])}
        draws = [Draw(0, task[i], group_size, metadata) for i in indices]
        draws += [Draw(0, _prompt(p), group_size, {**metadata, "kind": p["kind"]}) for p in proposed]
        return {**state, "shuffled_state": shuffled, "waiting_proposals": waiting}, draws

    def observe(self, state: ProposedProblemState, rollouts: Sequence[Rollout]) -> ProposedProblemState:
        return state

    def end_iteration(self, state: ProposedProblemState, rollouts: Sequence[Rollout]) -> ProposedProblemState:
        usual, kinds = state["mean_diversity"], dict(state["diversity_by_kind"])
        stds = [_diversity(rollout) for rollout in rollouts]
        for rollout, std in zip(rollouts, stds):
            if usual is not None and (kind := rollout.draw.metadata.get("kind")) is not None:
                new = relative(std, usual)
                kinds[kind] = moved(kinds.get(kind, new), new, self.diversity_ema_rate)
        mean = fmean(stds) if stds else usual
        usual = mean if usual is None or mean is None else moved(usual, mean, self.diversity_ema_rate)
        proposed = [{**p, "writer": r.draw.prompt.id} for r in rollouts for p in r.draw.metadata.get("proposals", ())]
        waiting = [*state["waiting_proposals"], *proposed][-self.max_waiting_proposals :]
        return {**state, "waiting_proposals": waiting, "mean_diversity": usual, "diversity_by_kind": kinds}

    def numbers(self, state: ProposedProblemState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        proposed = sum("kind" in rollout.draw.metadata for rollout in rollouts)
        return {"waiting": len(state["waiting_proposals"]), "proposed": proposed}


def relative(std: float, usual: float) -> float:
    """A diversity of answers, relative to the mean one: from -1 to 1.

    >>> [round(relative(std, 0.25), 6) for std in (0.0, 0.5, 0.254951)]
    [-1.0, 1.0, 0.019804]
    """
    return max(-1.0, min((std - usual) / max(usual, 1e-6), 1.0))


def moved(average: float, value: float, rate: float) -> float:
    return average + rate * (value - average)


def _diversity(rollout: Rollout) -> float:
    return pstdev([score_of(s) for s in rollout.samples if s.role == "answer"] or [0.0])


def _prompt(problem: dict[str, Any]) -> Prompt:
    writer = problem["writer"].partition(" > ")[0]  # the first one: ids do not grow
    return Prompt(f"{writer} > {problem['text']}", tuple(problem["context"]), problem["text"], problem["row"])


def syn_grpo(
    *,
    group_size: int = 8,
    share: float = 0.5,
    rate: float = 0.05,
    diverse: float = 0.5,
    source: ProposalParser = SumProposalParser(),
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """GRPO; answers also propose problems, drawn later. A proposal of a kind with diverse answers earns more reward.

    With fixed images, the rewards of a group can become equal, which ends exploration; an entropy bonus treats only the
    symptom. Syn-GRPO lets the policy propose new problems, and rewards proposals that lead to diverse answers. Problems
    in text, and credit by the kind of problem, are our reading.

    Args:
        group_size: answers per prompt.
        share: largest fraction of the prompts that are proposals, from 0 to 1.
        rate: step size of the moving averages of the diversity, above 0 and up to 1.
        diverse: weight of the diversity reward r_div.
        source: component that extracts a proposed problem from an answer.
        clip: distance of both clip bounds from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        curriculum=ProposedProblemCurriculum(share, rate),
        strategy=ProposalCollectingStrategy(proposal_parser=source),
        shaping=(Score(), AddWellFormed(1.0), AddSubscore("diverse", diverse)),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Syn-GRPO: Self-Evolving Data Synthesis for MLLM Perception Reasoning",
    arxiv="2511.19343",
    evidence="our reading",
    parent="grpo",
    formula="""\
div(q) = std of the accuracy rewards of q's group; D = moving average of div
r_div = clip((div(q') - D) / D, -1, 1) for a problem q' that an answer proposed
R_i = accuracy + format + 0.5 r_div; GRPO's objective""",
    differences=(
        PaperDifference(
            "problems", "images, repainted by a model", "not obtained", "text that the policy writes (inferred)"
        ),
        PaperDifference("server", "asynchronous", "not obtained", "the curriculum; it never waits"),
        PaperDifference(
            "credit", "not readable", "not obtained", "mean of r_div over problems of the same kind (inferred)"
        ),
        PaperDifference("diversity", "variance of the accuracy", "not obtained", "std (inferred)"),
        PaperDifference(
            "smoothing", "against the current diversity", "not obtained", "moving average, 0.05 (inferred)"
        ),
        PaperDifference("share of new problems", "not obtained", "not obtained", "0.5 (inferred)"),
        PaperDifference("weight of r_div", "not obtained", "not obtained", "0.5 (inferred)"),
        PaperDifference("KL", "not obtained", "not obtained", "none (inferred)"),
        PaperDifference(
            "group size, clip range, minibatches", "not obtained", "not obtained", "8, 0.2 and 1 (inferred)"
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[syn_grpo]",
        "tests/golden/test_memory.py::test_proposed_problems_are_drawn_and_credited_by_kind",
    ),
    expected_effect=ExpectedEffect(
        metric="entropy",
        direction="up",
        task="proposed_sums",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("method.objective.penalties = []",),
        acted="curriculum/proposed",
        acted_least=1.0,
    ),
)
