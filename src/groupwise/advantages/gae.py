"""Generalised advantage estimation (GAE): PPO's advantage per token, from the values of a critic."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.credit import discounted, last_of_sample, token_rewards
from groupwise.data import Batch, Credit, Logp, Measure, Value

__all__ = ["GAE"]


@dataclass(frozen=True, slots=True)
class GAE(Credit):
    """`A_t = sum over s >= t of (gamma lam)^(s - t) delta_s` with `delta_t = r_t + gamma V_{t+1} - V_t`.

    `r` is the sample's number at the last token, minus `kl (log pi_old - log model)` at each token. `V` are the values
    of the side model `critic`, and 0 after the last token, also of a truncated answer. GAE, arXiv:1506.02438, equation
    16. Tokens that are not trained, such as those of an environment, are skipped: the next trained token follows.

    `kl = 0` needs no reference. `WhitenedTokens(GAE())` whitens over the iteration, as PPO does.

    >>> from groupwise.data import pack, rollout_of
    >>> batch = pack([rollout_of([1.0], lengths=[4])])
    >>> values = torch.tensor([0.2, 0.4, 0.6, 0.5], dtype=torch.float64)
    >>> batch = batch.having(measures={Value("critic"): values})
    >>> [round(x, 4) for x in GAE(gamma=1.0, lam=0.0)(batch.score, batch).tolist()]
    [0.2, 0.2, -0.1, 0.5]
    """

    gamma: float = 1.0
    lam: float = 0.95
    kl: float = 0.0
    critic: str = "critic"
    model: str = "reference"

    def __post_init__(self) -> None:
        if not (0 <= self.gamma <= 1 and 0 <= self.lam <= 1):
            raise ValueError(f"{self}: gamma and lam are out of range\ntake 0 <= gamma <= 1 and 0 <= lam <= 1")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Value(self.critic)} | ({Logp("policy"), Logp(self.model)} if self.kl else set()))

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        value = b[Value(self.critic)].to(x.dtype)
        following = torch.where(last_of_sample(b), 0.0, value.roll(-1))
        delta = token_rewards(x, b, kl=self.kl, model=self.model) + self.gamma * following - value
        return discounted(delta, b.sequences.index, self.gamma * self.lam)
