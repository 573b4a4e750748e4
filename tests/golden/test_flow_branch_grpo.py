"""BranchGRPO: its worked tree, the cost of a tree, and the whole path against a NumPy transcription over edges."""

import asyncio
from collections import defaultdict
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from groupwise.advantages import Standardised
from groupwise.data import Batch, Draw, Logp, Outcome, Prompt, Rollout, Sample, Sampling, Verdict, Verifier, pack
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.methods import BranchingTree, Method, ScheduleInput, branch_grpo
from groupwise.methods.flow.branch_grpo import TreeNode
from groupwise.models import DanceGrpoNoise, DenoisingSettings, decode_action, log_density, normals
from groupwise.models.philox import lineage
from groupwise.training.loop import compute_advantages
from tests.golden import papers_flow as papers
from tests.golden.flow_groups import FIRST, SIZE, WORDS, LinearField, f64, near, policy_of, slope
from tests.rollout.fakes import sampler_of

RANDOM = np.random.default_rng(5)
FIELD = papers.Field(RANDOM.normal(size=(SIZE, SIZE)), RANDOM.normal(size=SIZE), RANDOM.normal(size=(WORDS, SIZE)))


def grown(strategy: BranchingTree, n: int, scores: Any, steps: int = 20) -> Rollout:
    """A tree of the linear field, whose leaves have these scores in order; None is unverifiable."""
    numbers = iter(scores)

    async def graded(prompt: Prompt, sample: Sample) -> Verdict:
        score = next(numbers)
        return Verdict(Outcome.unverifiable if score is None else Outcome.scored, score)

    return sampled(strategy, n, graded, steps)


def sampled(strategy: BranchingTree, n: int, verifier: Verifier, steps: int) -> Rollout:
    engine = DenoisingEngine(
        policy_of(LinearField(FIELD), DenoisingSettings(noise=DanceGrpoNoise(0.3), steps=steps)), seed=0
    )
    draw = Draw(3, Prompt("p", (FIRST + 1,)), n)
    sampler = sampler_of(engine, draw, verifier=verifier, sampling=Sampling(max_tokens=steps))
    return asyncio.run(strategy(draw, sampler))


def tree(rollout: Rollout) -> Batch:
    return pack([rollout], roles=("answer", "branch"))


def by_depth(batch: Batch, numbers: torch.Tensor) -> list[list[float]]:
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for sample, number in zip(batch.samples, numbers.tolist()):
        groups[sample.group].append(number)
    return [groups[depth] for depth in sorted(groups)]


def test_worked_tree() -> None:
    """Two splits: scores fused as means, and advantages by depth."""
    batch = tree(grown(BranchingTree(split_steps=(0, 10)), 4, [0.9, 0.5, 0.4, 0.2]))
    scores = by_depth(batch, batch.verdict_score)
    near(scores[0], [0.7, 0.3])
    near(scores[1], [0.9, 0.5, 0.4, 0.2])
    (standardised, _) = branch_grpo().advantage
    a = by_depth(batch, standardised(batch.verdict_score, batch))
    near(a[0], [0.707107, -0.707107])
    near(a[1], [1.358732, 0, -0.339683, -1.019049])
    assert [s.parent for s in batch.samples] == [None, None, 0, 0, 1, 1]
    assert [s.role for s in batch.samples] == ["branch"] * 2 + ["answer"] * 4


def test_worked_fusion_by_path_probabilities() -> None:
    def child(logp: float, score: float) -> TreeNode:
        sample = Sample(context=(FIRST,), stream=(0,), tokens=(0,), origin=(0,), logp=(logp,))
        return TreeNode(sample.with_verdict(Verdict(Outcome.scored, score)), 0, 1)

    children = [child(-1.0, 0.9), child(-1.5, 0.5)]
    near(BranchingTree(score_fusion="path")._fused(children).value, 0.748984)
    near(BranchingTree()._fused(children).value, 0.7)
    near(BranchingTree(score_fusion="path")._fused([child(-1.0, 0.9), child(-1.0, 0.5)]).value, 0.7)


def test_a_tree_of_16_answers_takes_218_steps_instead_of_320() -> None:
    """2 * 3 + 4 * 3 + 8 * 3 + 16 * 11 steps; the last of each of the 16 answers has no noise and is not trained."""
    rollout = grown(BranchingTree(), 16, (i % 7 / 7 for i in count()))
    assert sum(len(s.tokens) for s in rollout.samples) == 218 == 2 * 3 + 4 * 3 + 8 * 3 + 16 * 11
    assert len([s for s in rollout.samples if s.role == "answer"]) == 16
    batch = tree(rollout)
    assert batch.tokens == 218 - 16
    a = Standardised(ddof=1, eps=1e-8)(batch.verdict_score, batch)
    near([sum(group) for group in by_depth(batch, a)], [0.0] * 4, 1e-9)
    near(
        [np.mean(group) for group in by_depth(batch, batch.verdict_score)],
        [np.mean([i % 7 / 7 for i in range(16)])] * 4,
    )


def test_one_split_into_all_answers_is_a_plain_group() -> None:
    rewards = [0.1, 0.7, 0.2, 0.9, 0.4]
    rollout = grown(BranchingTree(split_steps=(0,)), 5, rewards, steps=4)
    assert [s.tokens for s in rollout.samples] == [(0, 1, 2, 3)] * 5
    first = [decode_action(s.actions[0]) for s in rollout.samples]
    assert all(np.array_equal(x[0], first[0][0]) for x in first) and len({x[1].tobytes() for x in first}) == 5
    batch, z = tree(rollout), np.array(rewards) - np.mean(rewards)
    near(Standardised(ddof=1, eps=1e-8)(batch.verdict_score, batch), z / np.std(rewards, ddof=1))


@pytest.mark.parametrize(("n", "leaves"), [(4, [2, 2]), (6, [3, 3]), (1, []), (16, [8, 8])])
def test_a_group_of_any_size_is_a_tree(n: int, leaves: list[int]) -> None:
    """Every branch has the mean score of its leaves, also where its children have unequally many."""
    samples = grown(BranchingTree(), n, (i**2 for i in count()), steps=12).samples
    assert sum(s.role == "answer" for s in samples) == n

    def below(i: int) -> list[float]:
        children = [j for j, s in enumerate(samples) if s.parent == i]
        return [x for j in children for x in below(j)] if children else [samples[i].verdict.value]  # type: ignore[union-attr]

    for i, sample in enumerate(samples):
        assert sample.verdict is not None and sample.verdict.value == pytest.approx(np.mean(below(i)))
    assert [len(below(i)) for i, s in enumerate(samples) if s.group == 1 and leaves] == leaves


def test_noise_is_larger_at_splits_and_log_probs_are_the_policys() -> None:
    rollout = grown(BranchingTree(split_steps=(1, 2)), 4, [0, 1, 0, 1], steps=5)
    std, seen = 0.3 * np.sqrt(1 / 5), set[int]()
    for sample in rollout.samples:
        for i, step in enumerate(sample.tokens[: 4 - sample.tokens[0]]):
            _, after, mean = decode_action(sample.actions[i])
            noise = normals((0, 0), [3], [lineage(sample.stream)], [step + 1], SIZE)[0].numpy()
            wide = 4 if i == 0 and sample.group else 1  # the first step after a fork
            near(after - mean, wide * std * noise, 1e-6)
            seen.add(wide)
    assert seen == {1, 4}
    batch, policy = tree(rollout), policy_of(LinearField(FIELD), DenoisingSettings(noise=DanceGrpoNoise(0.3), steps=5))
    near(policy.measure(batch, [Logp("policy")], {})[Logp("policy")], batch.logp_engine, 1e-5)
    mean, eps = f64([[0.910100, -0.475650]]), f64([[0.3, -1.2]])
    near(log_density(mean + 4 * 0.094868 * eps, mean, f64([0.094868])), -4.683674, 1e-5)


def test_an_answer_without_a_verdict_counts_for_no_branch() -> None:
    samples = grown(BranchingTree(split_steps=(0, 2)), 4, [None, 0.5, None, None], steps=4).samples
    verdicts = [s.verdict for s in samples[:2] if s.verdict]
    assert verdicts[0].value == 0.5 and verdicts[1].outcome is Outcome.unverifiable


@pytest.mark.parametrize(
    "changes",
    [
        {"split_steps": ()},
        {"split_steps": (3, 3)},
        {"split_steps": (-1,)},
        {"children_per_split": 1},
        {"noise_scale": 0},
    ],
)
def test_a_tree_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs split_steps"):
        BranchingTree(**changes)


# The whole path


def dance_step(x: Any, v: Any, t: float, s: float, eta: float = 0.3) -> tuple[Any, float]:
    """DanceGRPO's step by the score of the estimate of the data, as in BranchGRPO's code."""
    dt = s - t
    data = x - t * v
    score = -(x - (1 - t) * data) / t**2
    return x + dt * v - eta**2 / 2 * score * dt, max(eta * np.sqrt(t - s), 1e-8)


def paper_branch_grpo(samples: tuple[Sample, ...], new: Any, old: Any, steps: int, pruned: range = range(0)) -> Any:
    """A loop over edges: each leads to a node at depth `step + 1`, whose reward is the mean of the leaves below."""
    leaves: dict[int, list[float]] = {i: [] for i in range(len(samples))}
    for i, sample in enumerate(samples):
        if sample.role == "answer":
            node: int | None = i
            while node is not None:
                assert sample.verdict is not None
                leaves[node].append(sample.verdict.value)
                node = samples[node].parent
    edges = [(step + 1, i, j) for i, s in enumerate(samples) for j, step in enumerate(s.tokens) if step < steps - 1]
    total, kept = 0.0, 0
    for depth, i, j in edges:
        if depth in pruned:
            continue
        nodes = [np.mean(leaves[m]) for d, m, _ in edges if d == depth]
        std = np.std(nodes, ddof=1) if len(nodes) > 1 else 0.0
        a = 0.0 if std < 1e-6 else np.clip((np.mean(leaves[i]) - np.mean(nodes)) / (std + 1e-8), -5, 5)
        x, y, _ = decode_action(samples[i].actions[j]).astype(float)
        t, s = 1 - (depth - 1) / steps, 1 - depth / steps
        densities = [papers.log_density(y, *dance_step(x, f(x, t, 1), t, s)) for f in (new, old)]
        total += papers.clipped(a, np.exp(densities[0] - densities[1]), 1e-3)
        kept += 1
    return total / kept


@pytest.mark.parametrize("pruned", [False, True])
def test_whole_path(pruned: bool) -> None:
    """Loss, and its gradient by the weights of the velocity; with depth pruning at iteration 35, of depths 14 to 17."""
    method: Method = branch_grpo(pruned=pruned).at(ScheduleInput(35, 300, {}))
    rewards = np.random.default_rng(1).random(16)
    samples = grown(BranchingTree(), 16, rewards.tolist()).samples
    rng = np.random.default_rng(2)
    for moved in (1e-5, 1e-1):
        new = papers.Field(FIELD.w + moved * rng.normal(size=FIELD.w.shape), FIELD.b, FIELD.c)
        policies = [policy_of(LinearField(f), method.denoise or DenoisingSettings()) for f in (new, FIELD)]
        batch = tree(Rollout(Draw(3, Prompt("p", (FIRST + 1,)), 16), samples))
        old, logp = (p.measure(batch, [Logp("policy")], {})[Logp("policy")] for p in reversed(policies))
        step = compute_advantages(batch.having(logp_old=old.detach(), logp=logp), method)
        loss = method.objective(method.objective.prepare(step))
        loss.backward()
        depths = range(14, 18) if pruned else range(0)
        near(loss, paper_branch_grpo(samples, new, FIELD, 20, depths), 1e-12)
        expected = slope(lambda field: paper_branch_grpo(samples, field, FIELD, 20, depths), new)  # noqa: B023
        gradient = policies[0].velocity.w.grad
        assert gradient is not None
        near(gradient, expected, 1e-9)
