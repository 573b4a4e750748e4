"""Metrics of samples and steps, computed without gradient. Names are TRL's where TRL has the metric.

A metric is computed over the whole set that it describes, never averaged over microbatches, ranks or steps. A metric of
an empty set is left out.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import (
    CLIPPED,
    ENTROPY,
    GAP,
    LARGEST_GAP,
    MEAN_LENGTH,
    NO_SIGNAL,
    REWARD,
    TRAINED_TOKENS,
    TRUNCATED,
    Batch,
    Entropy,
    Finish,
    Logp,
    Outcome,
    Return,
    Value,
)
from groupwise.objective.objective import Objective
from groupwise.objective.penalties import kl_k1, kl_k3
from groupwise.objective.ratios import token_ratio
from groupwise.objective.surrogates import ReportsClipping

__all__ = ["comparable", "describe_gap", "describe_samples", "describe_step"]


@torch.no_grad()
def describe_samples(batch: Batch) -> dict[str, float]:
    """Metrics of the samples with the role `answer`: lengths, outcomes, subscores and rewards.

    `reward_std` is the mean of the groups' standard deviations (ddof 1). `frac_reward_zero_std` is the share of groups
    with equal rewards.
    """
    batch = batch.of_role("answer")
    if len(batch) == 0:
        return {}
    length = batch.length.double()
    outcomes = {o: batch.outcome == o for o in Outcome}
    metrics = {
        TRAINED_TOKENS: length.sum(),
        MEAN_LENGTH: length.mean(),
        "completions/min_length": length.min(),
        "completions/max_length": length.max(),
        TRUNCATED: _share(batch.finish == Finish.length),
        **{f"outcome/{o.name}": _share(x) for o, x in outcomes.items() if o is not Outcome.scored or bool(x.any())},
        **_range_of_scores(batch),
    }
    metrics |= {f"subscores/{name}": x.mean() for name, x in batch.subscores.items()}
    mean_length = batch.by("outcome").mean(length)
    for outcome, which in outcomes.items():
        if which.any():
            metrics[f"completions/mean_length_{outcome.name}"] = mean_length[outcome]
    if not bool(outcomes[Outcome.scored].any()):
        correct = batch.groups.total(outcomes[Outcome.correct].double())
        verified = batch.groups.total((~outcomes[Outcome.unverifiable]).double())
        metrics["groups/all_right"] = _share((correct == verified) & (verified > 0))
        metrics["groups/all_wrong"] = _share((correct == 0) & (verified > 0))
    if batch.reward is not None:
        g, reward = batch.groups, batch.reward
        metrics |= {REWARD: reward.mean(), "reward/min": reward.min(), "reward/max": reward.max()}
        variance = g.total(g.away(reward) ** 2) / (g.size(reward) - 1).clamp(min=1)
        metrics["reward_std"] = variance.sqrt().mean()
        metrics[NO_SIGNAL] = _share(g.largest(reward) + g.largest(-reward) == 0)
    return {name: float(x) for name, x in metrics.items()}


def _range_of_scores(batch: Batch) -> dict[str, Tensor]:
    """The smallest, mean and largest score of the verdicts that have one."""
    verdicts = [s.verdict for s in batch.samples]
    has_score = torch.tensor(
        [v is not None and v.score is not None for v in verdicts], device=batch.verdict_score.device
    )
    return _extremes("score", scores) if len(scores := batch.verdict_score[has_score]) else {}


@torch.no_grad()
def describe_step(step: Batch, objective: Objective) -> dict[str, float]:
    """Metrics of a step's tokens: ratios, clipping, KL, advantages. For several steps, pass the joined batch.

    `ratio` is the surrogate's ratio if it has one, else the token ratio. `kl` is k3; `kl/k1` is signed.
    """
    if step.tokens == 0:
        return {}
    ratio = getattr(objective.surrogate, "ratio", token_ratio)(step)
    metrics = {
        **_extremes("ratio", ratio),
        **_quantiles("ratio", ratio, (1, 50, 99)),
        **_extremes("advantage", step.advantage),
        "advantage/std": step.advantage.std(correction=0),
    }
    if isinstance(objective.surrogate, ReportsClipping):
        low, high = objective.surrogate.clipped(step)
        metrics["clip_ratio/low_mean"], metrics["clip_ratio/high_mean"] = _share(low), _share(high)
        metrics[CLIPPED] = _share(low | high)
    for measure in step.measures:
        if isinstance(measure, Logp) and measure.model != "policy" and not measure.view:
            name = "kl" if measure.model == "reference" else f"kl/{measure.model}"
            metrics[name] = kl_k3(step, measure.model).mean()
            metrics[f"{name}/k1"] = kl_k1(step, measure.model).mean()
    for measure in step.measures:
        if isinstance(measure, Return):
            metrics |= _describe_values(measure.model, step)
    if Entropy() in step.measures:
        metrics[ENTROPY] = step[Entropy()].mean()
    return {name: float(x) for name, x in metrics.items()} | describe_gap(step.logp_old, step)


def _describe_values(model: str, step: Batch) -> dict[str, Tensor]:
    """Metrics of critics: mean value and return, and the explained variance of the returns (at most 1)."""
    value, goal = step[Value(model)].double(), step[Return(model)].double()
    metrics = {f"value/{model}/mean": value.mean(), f"value/{model}/return": goal.mean()}
    if (variance := goal.var(correction=0)) > 1e-12:  # equal returns differ by rounding
        metrics[f"value/{model}/explained_variance"] = 1 - (goal - value).var(correction=0) / variance
    return metrics


def comparable(step: Batch) -> Bool[Tensor, " n"]:
    """For each token, whether it was sampled with the weights and the prompt that the learner uses now."""
    return (
        ~step.logp_engine.isnan() & (step.staleness == 0) & step.same_context
    )  # a written token has no engine log-prob


@torch.no_grad()
def describe_gap(logp: Float[Tensor, " n"], step: Batch) -> dict[str, float]:
    """Mean and maximum of |learner's log-prob - engine's log-prob|, over tokens that the current weights sampled.

    Older tokens are left out: their difference is the change of the policy, not an error of the engine. So are tokens
    that are trained under another context than they were sampled under.
    """
    gap = (logp - step.logp_engine).abs()
    gap = gap[comparable(step) & ~gap.isnan()]
    return {f"{GAP}/mean": float(gap.mean()), LARGEST_GAP: float(gap.max())} if len(gap) else {}


def _quantiles(name: str, x: Float[Tensor, " n"], percents: tuple[int, ...]) -> dict[str, Tensor]:
    """Percentiles of the values by nearest rank, without interpolation."""
    ordered = x.sort().values
    return {f"{name}/p{percent:02d}": ordered[-(-percent * len(x) // 100) - 1] for percent in percents}


def _share(which: Tensor) -> Tensor:
    return which.double().mean()


def _extremes(name: str, x: Float[Tensor, " n"]) -> dict[str, Tensor]:
    return {f"{name}/min": x.min(), f"{name}/mean": x.mean(), f"{name}/max": x.max()}
