"""DRPO: Decoupled Reward Policy Optimization."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Outcome, Penalty, Surrogate, UnsplitUnit
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import AggregateReplacingWeight, Objective, group_token_mean, token_mean

__all__ = ["DiscriminativeLoss", "KLHinge", "ShortAnswerWeights", "drpo"]


@dataclass(frozen=True, slots=True)
class ShortAnswerWeights(Advantage):
    """Weights for `DiscriminativeLoss`: above 0 for correct answers, larger for short ones, with sum 1; else -1.

    DRPO, arXiv:2510.04474. 0 in groups without both. They are not advantages of a policy gradient.
    """

    group_relative: ClassVar[bool] = True

    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"{self}: needs temperature > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, correct = b.groups, b.outcome == Outcome.correct
        brevity = -b.length.double() / max(b.max_new_tokens, 1) / self.temperature
        shortest = g.spread(g.largest(torch.where(correct, brevity, -torch.inf)))
        weight = torch.where(correct, (brevity - shortest).exp(), 0.0)  # at most 1, so the sum cannot underflow
        share = weight / g.spread(g.total(weight)).clamp(min=1)
        mixed = (g.total(correct.double()) > 0) & (g.total((~correct).double()) > 0)
        return torch.where(correct, share, -1.0) * g.spread(mixed)


@dataclass(frozen=True, slots=True)
class DiscriminativeLoss(Surrogate):
    """A softmax loss that raises the mean log-prob of a group's correct answers above that of its wrong ones. DRPO.

    An answer's weight w is its advantage if that is above 0; answers with an advantage below 0 are the wrong ones. No
    correct answer is pushed down. DRPO, arXiv:2510.04474; with equal weights DisCO, arXiv:2505.12366.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    tau: float = 10.0

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"{self}: needs tau > 0")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        g, s, live = b.groups, b.sequences.mean(b.logp), b.sequences.lengths > 0
        w = b.sequences.mean(b.advantage)
        correct, wrong = live & (w > 0), live & (w < 0)
        top = g.largest(torch.where(wrong, s.detach() / self.tau, -torch.inf))
        top = top.masked_fill(top == -torch.inf, 0.0)  # a group without a wrong answer
        total = g.total(torch.where(wrong, s / self.tau - g.spread(top), -torch.inf).exp())
        mean = total / g.total(wrong.to(s.dtype)).clamp(min=1)
        rival = self.tau * (top + mean.masked_fill(mean == 0, 1.0).log())
        gain = g.total(torch.where(correct, w * (s - g.spread(rival)), 0.0))
        mixed = (g.total(correct.to(s.dtype)) > 0) & (g.total(wrong.to(s.dtype)) > 0)
        return b.token_groups.spread(torch.where(mixed, gain, 0.0))


@dataclass(frozen=True, slots=True)
class KLHinge(Penalty):
    """A penalty on the KL to the old policy beyond `delta`: `sg[coefficient max(KL - delta, 0)] KL`.

    Its gradient is that of `coefficient / 2 max(KL - delta, 0)^2`: none inside the trust region. DRPO,
    arXiv:2510.04474. The KL is averaged by the objective's aggregate. The whole step is one microbatch, since the
    factor is one number of the step.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "step"

    coefficient: float = 1e3
    delta: float = 1e-4

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        drift = b.logp_old - b.logp
        kl = (b.loss_share * drift.detach()).sum()
        return self.coefficient * (kl - self.delta).clamp(min=0) * drift


def drpo(
    *,
    group_size: int = 8,
    temperature: float = 0.1,
    tau: float = 10.0,
    beta: float = 1e3,
    delta: float = 1e-4,
    minibatches: int = 4,
) -> Method:
    """Contrasts correct answers, the shorter the more weight, with wrong ones. Penalises a KL above a threshold.

    With a length reward in GRPO, a correct but long answer can fall below the group's mean and is then made less
    likely. Here length only sets positive weights among correct answers, and these are contrasted with the wrong ones.

    Args:
        group_size: answers per prompt.
        temperature: temperature of the weights by length, lambda, above 0; a lower one favours short answers more.
        tau: temperature of the softmax over wrong answers, tau, above 0.
        beta: coefficient of the KL penalty above the threshold, beta.
        delta: threshold of the mean KL per token, delta, in nats.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(ShortAnswerWeights(temperature),),
        objective=Objective(
            surrogate=DiscriminativeLoss(tau),
            weights=(AggregateReplacingWeight(group_token_mean),),
            penalties=(KLHinge(beta, delta),),
            aggregate=token_mean,
        ),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization",
    arxiv="2510.04474",
    evidence="code read",
    code="Optimization-AI/DRPO@405f70268c7943f4e1fb253fd50170bca0de772b:verl/verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = mean over prompts of sum_(i correct) w_i (s_i - tau log mean_(j wrong) exp(s_j / tau)) - sg[beta (KL - delta)+] KL
s_i = 1/|o_i| sum_t log pi,  w_i = exp((1 - |o_i| / C) / lambda), normalised over the correct answers
KL = mean over tokens of log pi_old - log pi""",
    differences=(
        PaperDifference("KL's hinge", "squared", "its gradient, per minibatch", "the same; the step is one microbatch"),
        PaperDifference("length", "over the budget", "over the batch's padded length", "over the generation budget"),
        PaperDifference("lambda", "swept", "0.1", "0.1"),
        PaperDifference("tau, beta, delta", "not obtained", "10, 1000, 1e-4", "10, 1000, 1e-4"),
        PaperDifference("prompts without both kinds", "no term", "no term, and they count", "no term, and they count"),
        PaperDifference("group size, minibatches", "8; 4", "8; 4", "8; 4"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[drpo]",
        "tests/golden/test_reward.py::test_drpo_contrast",
        "tests/golden/test_reward.py::test_kl_hinge",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=1.0,
        runs_matched_by="iterations",
        settings=LARGE_GROUPS,
        kept="eval/accuracy",
    ),
    our_finding="In ten iterations samples of wordy_sums become 5 tokens shorter than with GRPO, of 34.",
)
