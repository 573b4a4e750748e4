"""What people look at, from whole steps and under no grad. Names are TRL's where it has one.

A number is taken over the whole set that it describes, never averaged over microbatches, ranks or steps; where there is
nothing to describe, its name is missing.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import GAP, LARGEST_GAP, Batch, Entropy, Finish, Logp, Outcome
from groupwise.objective.objective import Objective
from groupwise.objective.penalties import kl_k1, kl_k3
from groupwise.objective.ratios import token_ratio
from groupwise.objective.surrogates import Clips

__all__ = ["describe_gap", "describe_samples", "describe_step"]


@torch.no_grad()
def describe_samples(batch: Batch) -> dict[str, float]:
    """Lengths, outcomes and rewards of samples, each counted once.

    `reward_std` is the mean of the groups' standard deviations (ddof 1); a group without signal has all rewards equal.
    """
    if len(batch) == 0:
        return {}
    length = batch.length.double()
    outcomes = {o: batch.outcome == o for o in Outcome}
    found = {
        "num_tokens": length.sum(),
        "completions/mean_length": length.mean(),
        "completions/min_length": length.min(),
        "completions/max_length": length.max(),
        "completions/clipped_ratio": _share(batch.finish == Finish.length),
        **{f"outcome/{o.name}": _share(which) for o, which in outcomes.items()},
    }
    found |= {f"parts/{name}": x.mean() for name, x in batch.parts.items()}
    mean_length = batch.by("outcome").mean(length)
    for outcome, which in outcomes.items():
        if which.any():
            found[f"completions/mean_length_{outcome.name}"] = mean_length[outcome]
    known = ~outcomes[Outcome.unverifiable]
    right = batch.groups.total(outcomes[Outcome.correct].double())
    judged = batch.groups.total(known.double())
    found["groups/all_right"] = _share((right == judged) & (judged > 0))
    found["groups/all_wrong"] = _share((right == 0) & (judged > 0))
    if batch.reward is not None:
        g, reward = batch.groups, batch.reward
        found["reward"] = reward.mean()
        spread = g.total(g.away(reward) ** 2) / (g.size(reward) - 1).clamp(min=1)
        found["reward_std"] = spread.sqrt().mean()
        found["frac_reward_zero_std"] = _share(g.largest(reward) + g.largest(-reward) == 0)
    return {name: float(x) for name, x in found.items()}


@torch.no_grad()
def describe_step(step: Batch, objective: Objective) -> dict[str, float]:
    """What a step did to its tokens: ratios, clipping, distances, advantages. Several steps: `Batch.joined` them first.

    `ratio` is the surrogate's own where it has one, else each token's; `kl` is k3, `kl/k1` the signed one.
    """
    if step.tokens == 0:
        return {}
    ratio = getattr(objective.surrogate, "ratio", token_ratio)(step)
    found = {
        **_extremes("ratio", ratio),
        **_quantiles("ratio", ratio, (1, 50, 99)),
        **_extremes("advantage", step.advantage),
        "advantage/std": step.advantage.std(correction=0),
    }
    if isinstance(objective.surrogate, Clips):
        low, high = objective.surrogate.clipped(step)
        found["clip_ratio/low_mean"], found["clip_ratio/high_mean"] = _share(low), _share(high)
        found["clip_ratio/region_mean"] = _share(low | high)
    for measure in step.measures:
        if isinstance(measure, Logp) and measure.model != "policy":
            name = "kl" if measure.model == "reference" else f"kl/{measure.model}"
            found[name] = kl_k3(step, measure.model).mean()
            found[f"{name}/k1"] = kl_k1(step, measure.model).mean()
    if Entropy() in step.measures:
        found["entropy"] = step[Entropy()].mean()
    return {name: float(x) for name, x in found.items()} | describe_gap(step.logp_old, step)


@torch.no_grad()
def describe_gap(logp: Float[Tensor, " n"], step: Batch) -> dict[str, float]:
    """How far the learner's log-probs, at the weights that sampled, are from the engine's."""
    gap = (logp - step.logp_engine).abs()
    gap = gap[~gap.isnan()]  # a token that was written has no engine log-prob
    return {f"{GAP}/mean": float(gap.mean()), LARGEST_GAP: float(gap.max())} if len(gap) else {}


def _quantiles(name: str, x: Float[Tensor, " n"], percents: tuple[int, ...]) -> dict[str, Tensor]:
    """Of each percentage the smallest element that so many in 100 do not pass."""
    ordered = x.sort().values
    return {f"{name}/p{percent:02d}": ordered[-(-percent * len(x) // 100) - 1] for percent in percents}


def _share(which: Tensor) -> Tensor:
    return which.double().mean()


def _extremes(name: str, x: Float[Tensor, " n"]) -> dict[str, Tensor]:
    return {f"{name}/min": x.min(), f"{name}/mean": x.mean(), f"{name}/max": x.max()}
