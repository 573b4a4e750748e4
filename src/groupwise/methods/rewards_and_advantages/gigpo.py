"""GiGPO: Group-in-Group Policy Optimization, for agents."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Credit, Segments
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, turn_mean
from groupwise.rewards import Score
from groupwise.rollout import Turns

__all__ = ["TurnGroups", "gigpo"]


@dataclass(frozen=True, slots=True)
class TurnGroups(Credit):
    """`x + omega z`, z the z-score of a turn's discounted reward among the group's turns after the same observation.

    A turn that is k turns before the last has the reward `gamma^k R`. Turns after the same observation chose their
    action in the same state. GiGPO, arXiv:2505.10978, for observations that are exact texts and a reward at the end.
    """

    omega: float = 1.0
    gamma: float = 0.95
    divide_by_std: bool = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        states: dict[Hashable, int] = {}
        state: list[int] = []
        reward: list[float] = []
        for sample, group, r in zip(b.samples, b.groups.index.tolist(), b.reward.tolist()):
            end = 0
            for k, (first, last) in enumerate(sample.turns):
                conversation = None if k else sample.context  # an agent opens conversations with several prompts
                state.append(states.setdefault((group, conversation, sample.tokens[end:first]), len(states)))
                reward.append(r * self.gamma ** (len(sample.turns) - 1 - k))
                end = last
        device = b.index_in_sample.device
        same = Segments(torch.tensor(state, dtype=torch.long, device=device), len(states))
        rewards = torch.tensor(reward, dtype=x.dtype, device=device)
        z = same.zscore(rewards, ddof=1, eps=1e-6) if self.divide_by_std else same.away(rewards)
        return b.sequences.spread(x) + self.omega * z[b.turns.index]


def gigpo(
    *,
    group_size: int = 8,
    turns: int = 8,
    omega: float = 1.0,
    gamma: float = 0.95,
    divide: bool = True,
    right: float = 10.0,
    kl: float = 0.01,
) -> Method:
    """Conversations: the group's z-score, plus the z-score of each turn among turns after the same observation.

    In long conversations GRPO gives every turn the same advantage. Here turns of a group that follow the same
    observation are also compared with each other, by discounted reward, without a critic or more samples.

    Args:
        group_size: conversations per prompt.
        turns: largest number of turns in a conversation.
        omega: weight of the comparison among turns, omega.
        gamma: discount per turn, gamma, from 0 to 1.
        divide: whether the advantages of turns are divided by their standard deviation.
        right: reward of a correct conversation.
        kl: coefficient of the KL penalty to the initial policy, beta.
    """
    return Method(
        group_size=group_size,
        strategy=Turns(turns),
        shaping=(Score(scale=right),),
        advantage=(Standardised(),),
        credit=TurnGroups(omega, gamma, divide),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=turn_mean),
    )


REFERENCE = PaperReference(
    paper="Group-in-Group Policy Optimization for LLM Agent Training",
    arxiv="2505.10978",
    evidence="code read earlier",
    parent="grpo",
    formula="""\
A_it = A^E_i + omega A^S_k for a token of turn k
J = mean over turns of the mean over tokens of min[ r_it A_it, clip(r_it, 1 - eps, 1 + eps) A_it ], minus beta KL
A^E_i = z-score of R_i in the group; A^S_k = z-score of gamma^(K - k) R_i among the group's turns in the same state""",
    differences=(
        PaperDifference(
            "state",
            "the environment's",
            "the observation's text; or similar texts",
            "the exact tokens since the last turn",
        ),
        PaperDifference("rewards of turns", "any", "any", "one, at the end"),
        PaperDifference("history", "any", "summarised every turn", "only grows"),
        PaperDifference("mean without std", "ablation", "mode mean_norm", "divide = false"),
        PaperDifference("omega, gamma, KL", "1; 0.95; 0.01", "1; 0.95; 0.01", "1; 0.95; 0.01"),
        PaperDifference(
            "aggregate",
            "every turn weighs the same (recalled)",
            "every token: token-mean, verl's default",
            "every turn: turn_mean; aggregate = token_mean",
        ),
        PaperDifference("group size, turns", "8; 50 in ALFWorld", "8; 50", "8; 8"),
        PaperDifference("minibatches", "not obtained", "of 256 turns", "one, of the whole iteration"),
        PaperDifference("reward of a success", "10", "10", "10"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[gigpo]",
        "tests/golden/test_reward.py::test_turn_groups",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="big_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.strategy = Turns",),
    ),
)
