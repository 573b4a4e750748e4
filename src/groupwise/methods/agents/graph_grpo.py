"""Graph-GRPO: the policy writes a communication graph of agents, and each edge has an advantage."""

from typing import Literal

from groupwise.advantages import ActionSuccess, Standardised, every_token
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Objective, policy_gradient, sequence_sum

__all__ = ["graph_grpo"]


def graph_grpo(
    *,
    group_size: int = 16,
    level: Literal["edge", "graph"] = "edge",
    present: str = "",
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """Each edge is reinforced by how often graphs with it succeed, relative to the other edges of the group."""
    return Method(
        group_size=group_size,
        advantage=() if level == "edge" else (Standardised(ddof=0, eps=1e-8),),
        credit=ActionSuccess(present) if level == "edge" else every_token,
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=policy_gradient, penalties=(KL(kl),), aggregate=sequence_sum),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Graph-GRPO: Stabilizing Multi-Agent Topology Learning via Group Relative Policy Optimization",
    arxiv="2603.02701",
    label="our reading",
    parent="grpo",
    formula="""\
J = 1/K sum_k sum_e A_e log pi(e) - beta k3,  e the decisions (edge present or absent) of graph k
S_e = mean reward of the graphs of the group with decision e;  A_e = (S_e - mean(S)) / std(S)""",
    differences=(
        Difference(
            "policy",
            "graph attention network, Bernoulli edges, acyclic",
            "not released",
            "a text with a digit per edge, the trained language model; the agents are the task's verifier",
        ),
        Difference(
            "absent edges",
            "not obtained",
            "not released",
            'decisions like present ones; present = "1": present edges alone (both inferred)',
        ),
        Difference("loss", "a KL-regularized loss; form not obtained", "not released", "above (inferred)"),
        Difference("KL coefficient", "not obtained", "not released", "0.04, as in GRPO (inferred)"),
        Difference("std", "not obtained", "not released", "ddof 0, plus 1e-8 (inferred)"),
        Difference("advantage per graph", "an ablation", "not released", 'level = "graph"'),
        Difference("group size", "16 (recalled)", "not released", "16"),
        Difference("minibatches", "not obtained", "not released", "1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[graph_grpo]",
        "tests/golden/test_methods.py::test_whole_path[graph_grpo, present edges]",
        "tests/golden/test_methods.py::test_whole_path[graph_grpo, graph level]",
        "tests/golden/test_agents.py::test_edge_success_rates",
        "tests/golden/test_agents.py::test_edges_of_groups_without_contrast",
    ),
    effect=Effect(metric="eval/accuracy", direction="up", task="edges", parent="grpo", least=0.03, matched="steps"),
)
