"""DHPO: Dynamic Hybrid Policy Optimization."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, EntropyShare, MixedClip, Objective, group_mean, sequence_ratio_per_token

__all__ = ["dhpo"]


def dhpo(
    *,
    group_size: int = 16,
    token: tuple[float, float] = (0.2, 0.28),
    sequence: tuple[float, float] = (3e-4, 4e-4),
    entropy_guided: bool = False,
    minibatches: int = 4,
) -> Method:
    """Mixes GRPO's token ratio and GSPO's sequence ratio, each clipped in a separate range before the mix."""
    mix = EntropyShare() if entropy_guided else 0.5
    surrogate = MixedClip(Clip(*token), Clip(*sequence, ratio=sequence_ratio_per_token), mix)
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Orchestrating Tokens and Sequences: Dynamic Hybrid Policy Optimization for RLVR",
    arxiv="2601.05607",
    label="our reading",
    parent="gspo_token",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t min[ m_it A_i, m^_it A_i ]
m_it = w r_it + (1 - w) s_it
m^_it = w clip(r_it, 1 - eps_tok_low, 1 + eps_tok_high) + (1 - w) clip(s_it, 1 - eps_seq_low, 1 + eps_seq_high)
w = 1/2, or the entropy of the token over the largest of its answer
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        Difference("minimum", "one clipped objective of the mix", "not found", 'of the mixes; form = "separate"'),
        Difference("entropy guide", "in words", "not found", "H / max H of the answer (inferred)"),
        Difference("entropy", "not obtained", "not found", "of the policy before the update"),
        Difference("clip ranges", "not obtained", "not found", "0.2 and 0.28; 3e-4 and 4e-4 (inferred)"),
        Difference("group size, minibatches", "not obtained", "not found", "16 and 4, as GSPO (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[dhpo]",
        "tests/golden/test_methods.py::test_whole_path[dhpo, by entropy]",
        "tests/golden/test_ratio.py::test_worked_numbers[dhpo, 0.2]",
        "tests/golden/test_ratio.py::test_dhpo_ends_are_grpo_and_gspo_token",
        "tests/golden/test_ratio.py::test_dhpo_forms_differ",
    ),
    effect=Effect(
        metric="clip_ratio/region_mean",
        direction="down",
        task="hinted_sums",
        parent="gspo_token",
        least=0.05,
        matched="steps",
        settings=(
            "iterations = 10",
            "evaluate.problems = 16",
            "method.minibatches = 8",
            "method.objective.penalties = []",
        ),
    ),
)
