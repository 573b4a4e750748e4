"""The whole path of a method, from verdicts to loss and gradient, against a transcription of its paper.

A transcription is NumPy in Python loops and shares no code with the library. Its derivatives are complex steps:
`imag(J(l + ih)) / h` is exact to rounding if comparisons use real parts and `sg` drops the imaginary part.

The answers are those that a run meets: groups of unequal size, answers without a trained token, tokens of an
environment, malformed and unverifiable verdicts, graded scores, missing subscores of verdicts, truncated answers, and
log-ratios far from 0. The library's side is that of a run: the buffer selects, `make_plan` cuts steps and microbatches.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from groupwise.data import (
    ENVIRONMENT,
    WRITTEN,
    Batch,
    ClassifierScore,
    Divergence,
    Draw,
    Entropy,
    Finish,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Value,
    Verdict,
    unsplit_unit,
)
from groupwise.learner import make_plan
from groupwise.methods import Method, ScheduleInput
from groupwise.rollout import RolloutBuffer, RolloutSetting, Shuffled
from groupwise.training.loop import compute_advantages
from tests.rollout.fakes import FakeEngine, NumberedTask, always_correct, judged_by, sampling, tokenizer

BUDGET = 8
SEEDS = 3
FAR = 25.0
"""The log-ratio of an outlier: beyond 20, where the library bounds ratios."""
PARTS = (
    "baseline", "chain_true", "confidence", "diverse", "exit", "gave_in", "leading", "other", "reached", "replay",
    "returned",
)  # fmt: skip
"""Parts of the verdicts. Each has numbers of its own."""
KINDS = (
    ("right", "wrong", "unverifiable", "graded right", "graded wrong", "right"),
    ("right", "malformed", "right", "right"),
    ("right", "right", "right"),
    ("wrong", "graded right", "wrong"),
    ("wrong", "graded wrong", "malformed"),
    ("right", "wrong", "graded wrong"),
    ("right", "wrong"),
)
"""The verdicts of each group: mixed, almost all correct, all correct, almost all wrong, all wrong, mixed twice.

The last has no trained token.
"""
SCORES = {"right": 1.0, "graded right": 0.75, "graded wrong": 0.25}
EMPTY, SPOKEN_FOR, FULL, PARTLESS = ((0, 1), (6, 0)), ((3, 0), (6, 1)), (1, 2), (3, 1)
"""Answers by group and index: without a token, with an environment's tokens alone, of the whole budget, and correct
with a verdict that has one part only."""
WRITTEN_ONE = (5, 0)
"""An answer that was written, for methods with such answers."""
UP, DOWN = ((0, 0), (3, 2)), ((1, 0), (4, 0))
"""Answers with an outlier: a correct and a wrong one that became much likelier, and two much less likely."""


@dataclass(eq=False)
class Answer:
    """One answer as in the papers; `l` may be complex. Columns have an entry for each trained token.

    `token_index` are the trained tokens among all `tokens`; the others are an environment's. `limit` is the
    budget of the answer: a long prompt leaves less than that of the run. A `written` answer was not sampled: the engine
    has no log-probs of it.

    `h` are entropies, `mu` the engine's log-probs and `v` a critic's values. `q` are a teacher's log-probs, `hq` its
    entropies and `d` its divergences from the policy; wrong answers have them under a view. `said` is the answer that
    the verifier read, and `parts` the subscores of its verdict. Each token is two characters of text, and every third
    token ends a sentence. Each sentence is a step with a reward.
    """

    kind: str
    cut: bool
    written: bool
    limit: int
    token_index: list[int]
    tokens: list[int]
    l: np.ndarray
    old: np.ndarray
    ref: np.ndarray
    h: np.ndarray
    mu: np.ndarray
    v: np.ndarray
    q: np.ndarray
    d: np.ndarray
    hq: np.ndarray
    said: str
    subscores: dict[str, float]

    @property
    def score(self) -> float:
        return SCORES.get(self.kind, 0.0)

    @property
    def right(self) -> bool:
        return self.kind.endswith("right")

    @property
    def readable(self) -> bool:
        return self.kind != "malformed"

    @property
    def n(self) -> int:
        """The length of the answer: all tokens after the prompt, trained or not."""
        return len(self.tokens)

    def part(self, name: str) -> float:
        """A subscore of the verdict; 0 for a verdict without it."""
        return self.subscores.get(name, 0.0)

    @property
    def text(self) -> str:
        return "".join("a." if t % 3 == 2 else "ab" for t in range(self.n))

    @property
    def sentences(self) -> list[list[int]]:
        """The trained tokens of each sentence. Where an environment spoke, a new one begins."""
        return self._runs(lambda before, after: after != before + 1 or before % 3 == 2)

    @property
    def turns(self) -> list[list[int]]:
        """The trained tokens of each turn of the model."""
        return self._runs(lambda before, after: after != before + 1)

    def _runs(self, parts: Callable[[int, int], bool]) -> list[list[int]]:
        edges = [t + 1 for t, (a, b) in enumerate(pairwise(self.token_index)) if parts(a, b)]
        bounds = [0, *edges, len(self.token_index)] if self.token_index else []
        return [list(range(a, b)) for a, b in pairwise(bounds)]

    @property
    def steps(self) -> dict[int, float]:
        """The reward of each sentence by its last trained token."""
        return {s[-1]: float(self.tokens[self.token_index[s[-1]]] - 3) for s in self.sentences}

    @property
    def r(self) -> np.ndarray:
        """The ratio of each token, whose log is bounded by 20."""
        return np.exp(clip(self.l - self.old, -20, 20))


Groups = list[list[Answer]]


def sg(x):
    return np.real(x)


def smaller(a, b):
    return np.where(np.real(a) <= np.real(b), a, b)


def clip(x, low, high):
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def z(rewards: np.ndarray) -> np.ndarray:
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def k3_of(gap):
    """The estimate of a KL; a token that is e^20 times likelier for the other policy has no gradient."""
    x = clip(gap, -math.inf, 20)
    return np.exp(x) - x - 1


def k3(o: Answer):
    return k3_of(o.ref - o.l)


def scores(group: list[Answer]) -> np.ndarray:
    return np.array([answer.score for answer in group])


def mean(x) -> complex:
    """The mean over the trained tokens of an answer; 0 without any."""
    return x.sum() / max(len(x), 1)


def live(members: Sequence[Answer] | Groups) -> int:
    """How many answers, or groups, have a trained token; at least 1, since it divides."""
    return max(sum(bool(len(m.l)) if isinstance(m, Answer) else any(len(o.l) for o in m) for m in members), 1)


def trained(group: list[Answer], advantages) -> list[tuple[Answer, float | np.ndarray]]:
    """The answers of a group with a trained token, with their advantages, whose statistics are over all answers."""
    return [(o, a) for o, a in zip(group, advantages, strict=True) if len(o.l)]


def every(groups: Groups) -> list[Answer]:
    return [o for group in groups for o in group]


def trained_tokens(groups: Groups) -> int:
    """How many tokens are trained."""
    return sum(len(o.l) for o in every(groups))


# What a filter keeps of a group whose answers are verified


def all_of(group: list[Answer]) -> list[Answer]:
    return group


def mixed(group: list[Answer]) -> list[Answer]:
    """DAPO: `0 < number of correct answers < G`."""
    return group if 0 < sum(o.right for o in group) < len(group) else []


def not_all_right(group: list[Answer]) -> list[Answer]:
    return [] if all(o.right for o in group) else group


def right_ones(group: list[Answer]) -> list[Answer]:
    return [o for o in group if o.right]


def distinct(group: list[Answer]) -> list[Answer]:
    """DaGRPO: the answers whose part is 0.2 or more from that of an answer of the other outcome."""

    def far(o: Answer, other: Answer) -> bool:
        apart = abs(o.part("chain_true") - other.part("chain_true")) >= 0.2
        return o.right != other.right and (apart or o.written or other.written)

    return [o for o in group if o.written or any(far(o, other) for other in group)]


Selects = Callable[[list[Answer]], list[Answer]]


def answers_of(seed: int, spread: float, without: Sequence[str] = (), written: bool = False) -> Groups:
    """Groups of `KINDS`; lengths up to the budget.

    The last seed has log-ratios of 25 and -25, the others of 3 and -3. `without` names what a method has no reading
    for: "outliers" beyond 20, "environment" (all tokens are trained) or "empty" (each answer has a trained token).
    """
    rng = np.random.default_rng(seed)
    far = FAR if seed == SEEDS - 1 and "outliers" not in without else 3.0

    def answer(g: int, i: int) -> Answer:
        empty = (g, i) in (*EMPTY, *SPOKEN_FOR) and "empty" not in without
        limit = BUDGET - g % 2 * (g != FULL[0])
        n = 0 if empty and (g, i) in EMPTY else BUDGET if (g, i) == FULL else int(rng.integers(1, limit + 1))
        trained = rng.random(n) < (1.0 if "environment" in without else 0.75)
        if n:
            trained[rng.integers(n)] = True
        token_index = [] if empty else np.flatnonzero(trained).tolist()
        k = len(token_index)
        base = -np.abs(rng.normal(0, 1, k)) - 0.01
        l, old, ref = base + rng.normal(0, spread, k), base.copy(), base + rng.normal(0, 0.4, k)
        old[:1] -= far * ((g, i) in UP)
        l[:1] -= far * ((g, i) in DOWN)
        kind = KINDS[g][i]
        parts = dict(zip(PARTS, rng.random(len(PARTS)).tolist()))
        numbers = [rng.random(k) for _ in range(4)]
        return Answer(
            kind, bool(rng.random() < 0.3), written and (g, i) == WRITTEN_ONE, limit, token_index,
            rng.integers(3, 5, n).tolist(), l, old, ref,
            h=2 * numbers[0], mu=old + rng.normal(0, 0.5, k), v=numbers[1], q=old + rng.normal(0, 0.5, k), d=numbers[2],
            hq=numbers[3], said=str(rng.integers(3)),
            subscores={} if kind == "malformed" else {"other": parts["other"]} if (g, i) == PARTLESS else parts,
        )  # fmt: skip

    return [[answer(g, i) for i in range(len(kinds))] for g, kinds in enumerate(KINDS)]


def batch_of(groups: Groups, method: Method) -> Batch:
    """The answers that a run of the method trains, as it packs them."""
    rollouts = [
        Rollout(Draw(g, Prompt(str(g), (1, 2)), len(group)), tuple(_sample(o, i) for i, o in enumerate(group)))
        for g, group in enumerate(groups)
    ]
    setting = RolloutSetting(
        engine=FakeEngine(lambda request: ()), verifier=judged_by(always_correct), tokenizer=tokenizer(), seed=0,
        sampling=sampling(max_tokens=BUDGET),
    )  # fmt: skip
    buffer = RolloutBuffer(NumberedTask(1), Shuffled(), setting, method.unverifiable, method.trained_roles)
    marked = buffer._marked(rollouts, method.filter, getattr(method.filter, "scope", "rollout") == "rollout")
    return buffer.pack([rollout for rollout in marked if any(rollout.selected or ())])


def _sample(o: Answer, i: int) -> Sample:
    at_token = dict(zip(o.token_index, [math.nan] * len(o.l) if o.written else o.mu.tolist()))
    sampled = WRITTEN if o.written else 0
    outcome = Outcome.correct if o.right else Outcome.wrong if o.kind.endswith("wrong") else Outcome[o.kind]
    score = SCORES.get(o.kind) if o.kind.startswith("graded") else None
    marks = {o.token_index[t]: number for t, number in o.steps.items()}
    return Sample(
        context=(1, 2), stream=(i,), limit=o.limit, tokens=tuple(o.tokens),
        origin=tuple(sampled if t in at_token else ENVIRONMENT for t in range(o.n)),
        logp=tuple(at_token.get(t, math.nan) for t in range(o.n)),
        finish=Finish.length if o.cut else Finish.stop, text=o.text, token_ends=tuple(range(2, 2 * o.n + 1, 2)),
        verdict=Verdict(outcome, score, o.subscores, answer=o.said),
        token_marks={"step": tuple(marks.get(t, math.nan) for t in range(o.n))},
        prompt_views={} if o.right else {"sibling": (1, 2, 3)},
    )  # fmt: skip


def measured(batch: Batch, answers: Sequence[Answer], method: Method) -> Batch:
    """The batch with the columns of its answers; `logp` is a leaf, and `logp_old` as the method's run has it.

    The numbers of a reward model are those of `logp`: the score of an answer is their sum.
    """

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.real(getattr(o, name)) for o in answers]))

    logp = column("l").requires_grad_()
    return batch.having(
        logp=logp,
        logp_old=batch.logp_engine if method.old_logprobs == "engine" else column("old"),
        measures={
            ClassifierScore(): logp,
            Logp("reference"): column("ref"),
            Entropy(): column("h"),
            Value("critic"): column("v"),
            Logp("teacher"): column("q"),
            Divergence("teacher", 0.5): column("d"),
            Divergence("teacher", 0.5, "sibling"): column("d"),
            Entropy("teacher", "sibling"): column("hq"),
            Logp("policy", "other_prompt"): column("hq"),
            Logp("reference", "other_prompt"): column("d"),
        },
        method_states={name: part.init() for name, part in method.states},
    )


Paper = Callable[..., complex]
"""A transcription: the objective of a step from its groups, and from all groups of the `iteration` if it has them."""


def complex_step(paper: Callable[[], complex], answers: Sequence[Answer]) -> np.ndarray:
    slopes = []
    for o in answers:
        original = o.l
        for t in range(len(original)):
            o.l = original.astype(complex)
            o.l[t] += 1e-30j
            slopes.append(np.imag(paper()) / 1e-30)
        o.l = original
    return np.array(slopes)


def check_whole_path(
    paper: Paper,
    method: Method,
    spread: float,
    selects: Selects = all_of,
    without: Sequence[str] = (),
    written: bool = False,
) -> None:
    """Selection, loss and gradient of a method equal those of its transcription, in two steps of an iteration.

    A transcription has the sign of an objective to maximise. `spread` is that of the log-ratios: the bounds of the
    method should be active on some tokens only.
    """
    for seed in range(SEEDS):
        groups = answers_of(seed, spread, without, written)
        chosen = [kept for group in groups if (kept := selects([o for o in group if o.kind != "unverifiable"]))]
        names = {o: (g, (i,)) for g, group in enumerate(groups) for i, o in enumerate(group)}
        batch = batch_of(groups, method)
        assert list(batch.sample_keys) == [names[o] for o in every(chosen)], (
            "the selected answers are those of the paper"
        )
        value = method.at(ScheduleInput(0, 10, {name: part.init() for name, part in method.states}))
        batch = measured(batch, every(chosen), method)
        compare_steps(paper, value, compute_advantages(batch, value), batch.logp, chosen, np.random.default_rng(seed))


def compare_steps(
    paper: Paper, method: Method, batch: Batch, logp: torch.Tensor, chosen: Groups, rng: np.random.Generator
) -> None:
    """Two optimizer steps of the iteration, each in microbatches, by the plan of a run. `logp` has all tokens."""
    edges = np.cumsum([0, *(len(o.l) for o in every(chosen))]).tolist()
    plan = make_plan(
        batch, size=-(-len(chosen) // 2), shuffle="prompts", permutation=lambda n: rng.permutation(n).tolist(),
        microbatch_tokens=20, unsplit_unit=unsplit_unit(method.objective),
    )  # fmt: skip
    whole = {"iteration": chosen} if "iteration" in inspect.signature(paper).parameters else {}
    largest = 0.0
    for step in plan:
        prepared = method.objective.prepare(batch.take(step.samples))
        starts = np.cumsum([0, *map(len, step.microbatches)]).tolist()
        parts = [prepared.take(range(a, b)) for a, b in pairwise(starts)]
        loss = torch.stack([method.objective(part) for part in parts]).sum()
        (gradient,) = torch.autograd.grad(loss, logp, retain_graph=True)
        answers = [every(chosen)[i] for i in step.samples]
        groups = [mine for group in chosen if (mine := [o for o in group if o in answers])]
        slopes = complex_step(lambda groups=groups: paper(groups, **whole), answers)
        assert float(loss.detach()) == pytest.approx(-np.real(paper(groups, **whole)), rel=1e-12, abs=1e-12)
        here = [t for i in step.samples for t in range(edges[i], edges[i + 1])]
        np.testing.assert_allclose(gradient[here].numpy(), -slopes, rtol=1e-10, atol=1e-12)
        assert gradient.count_nonzero() == gradient[here].count_nonzero(), "the other tokens have no gradient"
        largest = max(largest, np.abs(slopes).max())
    assert len(plan) == 2 and largest > 0.001, "the gradient is not 0"
