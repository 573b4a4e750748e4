"""Mean and variance of the update of a policy of one logit per prompt, over all outcomes of a batch: nothing is drawn.

An answer to a prompt is right with probability p = sigmoid(logit), so the gradient of its log-prob is 1 - p if it is
right and -p if not, and that of the share of right answers is p (1 - p).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from groupwise.data import pack, rollout_of
from groupwise.methods import Method, grpo, reinforce_pp, rloo
from groupwise.training.loop import compute_advantages


def updates(method: Method, right: Sequence[int], count: int, ps: Sequence[float]) -> list[float]:
    """The update of each prompt's logit if so many of its answers are right. A group has all of them, or one."""
    rewards = [[1.0] * k + [0.0] * (count - k) for k in right]
    size = method.group_size
    groups = [own[i : i + size] for own in rewards for i in range(0, count, size)]
    batch = pack([rollout_of(group, lengths=[1] * len(group)) for group in groups])
    advantages = compute_advantages(batch, method).advantage.tolist()
    by_prompt = [advantages[i * count : (i + 1) * count] for i in range(len(ps))]
    return [
        math.fsum(a * (x - p) for a, x in zip(own, rewards[i], strict=True)) / count
        for i, (own, p) in enumerate(zip(by_prompt, ps, strict=True))
    ]


def moments(method: Method, count: int, ps: Sequence[float]) -> tuple[list[float], list[float]]:
    """Mean and variance of the update of each prompt, over all numbers of right answers."""
    mean, square = [0.0] * len(ps), [0.0] * len(ps)
    for right in product(range(count + 1), repeat=len(ps)):
        chance = math.prod(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k, p in zip(right, ps, strict=True))
        for i, x in enumerate(updates(method, right, count, ps)):
            mean[i] += chance * x
            square[i] += chance * x * x
    return mean, [s - m * m for m, s in zip(mean, square, strict=True)]


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_leave_one_out_keeps_the_mean_and_lowers_the_variance_below_4_of_7(p: float) -> None:
    """With four answers and rewards of 0 and 1 the variance is lower where p < 4/7. Above, no baseline has less."""
    baseline = rloo(group_size=4, kl=0)
    (mean,), (variance,) = moments(baseline, 4, [p])
    (plain,), (without,) = moments(replace(baseline, advantage=()), 4, [p])
    assert mean == pytest.approx(p * (1 - p), rel=1e-9) == pytest.approx(plain, rel=1e-9)
    assert without == pytest.approx(p * (1 - p) ** 3 / 4, rel=1e-9)
    assert (variance < without) == (p < 4 / 7)


def test_a_batch_keeps_the_direction_of_the_gradient_a_group_does_not() -> None:
    """A group's std gives more weight to a hard prompt than the gradient does. A batch has one std for all prompts."""
    ps = (0.1, 0.5)
    exact = ps[0] * (1 - ps[0]) / (ps[1] * (1 - ps[1]))
    (hard, middle), _ = moments(reinforce_pp(kl=0), 6, ps)
    assert hard / middle / exact == pytest.approx(1, abs=0.05)
    (hard,), (middle,) = (moments(grpo(group_size=12, kl=0), 12, [p])[0] for p in ps)
    assert hard / middle / exact > 1.2
