"""Credit for the turns of a conversation and the steps of an answer."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.credit import discounted
from groupwise.data import Batch, Credit, Mark, Measure, Segments

__all__ = ["StepReturns", "TurnGroups"]


@dataclass(frozen=True, slots=True)
class TurnGroups(Credit):
    """`x + omega z`, z the z-score of a turn's discounted reward among the group's turns after the same observation.

    A turn that is k turns before the last has the reward `gamma^k R`. Turns after the same observation chose their
    action in the same state. GiGPO, arXiv:2505.10978, for observations that are exact texts and a reward at the end.
    """

    omega: float = 1.0
    gamma: float = 0.95
    divide: bool = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        states: dict[Hashable, int] = {}
        state: list[int] = []
        reward: list[float] = []
        for sample, group, r in zip(b.samples, b.groups.index.tolist(), b.reward.tolist()):
            end = 0
            for k, (first, last) in enumerate(sample.turns):
                state.append(states.setdefault((group, k > 0, sample.tokens[end:first]), len(states)))
                reward.append(r * self.gamma ** (len(sample.turns) - 1 - k))
                end = last
        device = b.place.device
        same = Segments(torch.tensor(state, dtype=torch.long, device=device), len(states))
        rewards = torch.tensor(reward, dtype=x.dtype, device=device)
        z = same.zscore(rewards, ddof=1, eps=1e-6) if self.divide else same.away(rewards)
        return b.sequences.spread(x) + self.omega * z[b.turns.index]


@dataclass(frozen=True, slots=True)
class StepReturns(Credit):
    """For each token, the sum of the z-scored rewards of its and later reasoning steps. GRPO, arXiv:2402.03300, 4.1.3.

    Step rewards are a mark at each step's last token. All steps of a group have one mean and std. The sample's number x
    is not used: add it with `outcome`.
    """

    mark: str = "steps"
    outcome: float = 0.0
    ddof: int = 1
    eps: float = 1e-6

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Mark(self.mark)})

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        rewards = b[Mark(self.mark)].to(x.dtype)
        marked = ~rewards.isnan()
        z = torch.zeros_like(rewards)
        z[marked] = b.token_groups.keep(marked).zscore(rewards[marked], ddof=self.ddof, eps=self.eps)
        return discounted(z, b.sequences.index, 1.0) + self.outcome * b.sequences.spread(x)
