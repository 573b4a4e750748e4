"""DRPO: Decoupled Reward Policy Optimization."""

from groupwise.advantages import LengthShares
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Discriminative, KLHinge, Objective, ReplaceAggregate, group_token_mean, token_mean

__all__ = ["drpo"]


def drpo(
    *,
    group_size: int = 8,
    temperature: float = 0.1,
    tau: float = 10.0,
    beta: float = 1e3,
    delta: float = 1e-4,
    minibatches: int = 4,
) -> Method:
    """Contrasts correct answers, the shorter the more weight, with wrong ones. Penalises a KL above a threshold."""
    return Method(
        group_size=group_size,
        advantage=(LengthShares(temperature),),
        objective=Objective(
            surrogate=Discriminative(tau),
            weights=(ReplaceAggregate(group_token_mean),),
            penalties=(KLHinge(beta, delta),),
            aggregate=token_mean,
        ),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization",
    arxiv="2510.04474",
    label="code read",
    code="Optimization-AI/DRPO@405f70268c7943f4e1fb253fd50170bca0de772b:verl/verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = mean over prompts of sum_(i correct) w_i (s_i - tau log mean_(j wrong) exp(s_j / tau)) - sg[beta (KL - delta)+] KL
s_i = 1/|o_i| sum_t log pi,  w_i = exp((1 - |o_i| / C) / lambda), normalised over the correct answers
KL = mean over tokens of log pi_old - log pi""",
    differences=(
        Difference("KL's hinge", "squared", "its gradient, per minibatch", "the same; the step is one microbatch"),
        Difference("length", "over the budget", "over the batch's padded length", "over the generation budget"),
        Difference("lambda", "swept", "0.1", "0.1"),
        Difference("tau, beta, delta", "not obtained", "10, 1000, 1e-4", "10, 1000, 1e-4"),
        Difference("prompts without both kinds", "no term", "no term, and they count", "no term, and they count"),
        Difference("group size, minibatches", "8; 4", "8; 4", "8; 4"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[drpo]",
        "tests/golden/test_reward.py::test_drpo_contrast",
        "tests/golden/test_reward.py::test_kl_hinge",
    ),
    effect=Effect(
        metric="completions/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        least=1.0,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16"),
    ),
    finding="In ten iterations samples of wordy_sums become 5 tokens shorter than with GRPO, of 34.",
)
