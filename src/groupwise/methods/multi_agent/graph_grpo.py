"""Graph-GRPO: the policy writes a communication graph of agents, and each edge has an advantage."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.advantages import Standardised, every_token
from groupwise.data import Batch, Credit, Segments
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, policy_gradient, sequence_sum

__all__ = ["ActionSuccess", "graph_grpo"]


@dataclass(frozen=True, slots=True)
class ActionSuccess(Credit):
    """The mean reward x of a group's answers with the same action, as z-score among the group's actions. Graph-GRPO.

    An action is a token at a position. Its mean is over the answers of the group that have this token there. With
    `action_text`, such as "1" for an edge, only tokens with this text are actions, and the others get 0.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], lengths=[1, 1])])
    >>> [round(a, 3) for a in ActionSuccess()(batch.verdict_score, batch).tolist()]
    [1.0, -1.0]
    """

    group_relative: ClassVar[bool] = True

    action_text: str = ""
    ddof: int = 0
    eps: float = 1e-8

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        actions, groups = _actions(b)
        counted = actions.total(self._counted(b).to(x.dtype)) > 0
        success = actions.mean(b.sequences.spread(x))
        z = torch.zeros_like(success)
        z[counted] = groups.keep(counted).zscore(success[counted], ddof=self.ddof, eps=self.eps)
        return actions.spread(z)

    def _counted(self, b: Batch) -> Bool[Tensor, " n"]:
        """For each token, whether it is an action."""
        if not self.action_text:
            return torch.ones_like(b.index_in_sample, dtype=torch.bool)
        texts = [[s.text[start:end] for start, end in zip((0, *s.token_ends), s.token_ends)] for s in b.samples]
        rows = [[text == self.action_text for text in row] + [False] * (len(s.tokens) - len(row))
                for row, s in zip(texts, b.samples)]  # fmt: skip
        return b.at_trained(rows, torch.bool)


def _actions(b: Batch) -> tuple[Segments, Segments]:
    """Which tokens are the same action (same token, position and group), and which actions belong to which group."""
    tokens: Int[Tensor, " n"] = b.at_trained([s.tokens for s in b.samples], torch.long)
    keys = torch.stack([b.token_groups.index, b.index_in_sample, tokens], 1)
    actions, index = keys.unique(dim=0, return_inverse=True)
    return Segments(index, len(actions)), Segments(actions[:, 0], b.groups.count)


def graph_grpo(
    *,
    group_size: int = 16,
    level: Literal["edge", "graph"] = "edge",
    present: str = "",
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """Each edge is reinforced by how often graphs with it succeed, relative to the other edges of the group.

    REINFORCE on one sampled graph gives all its edges the same reward: easy queries reinforce redundant edges, and hard
    ones give no signal. Here an edge is compared by the success of the graphs with it; the loss is our reading.

    Args:
        group_size: graphs per query, K.
        level: "edge" (an advantage for each edge) or "graph" (the ablation: one advantage per graph).
        present: text of the tokens that are present edges, such as "1"; empty: every token is a decision.
        kl: coefficient of the KL penalty to the initial policy, beta.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=() if level == "edge" else (Standardised(ddof=0, eps=1e-8),),
        credit=ActionSuccess(present) if level == "edge" else every_token,
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=policy_gradient, penalties=(KL(kl),), aggregate=sequence_sum),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Graph-GRPO: Stabilizing Multi-Agent Topology Learning via Group Relative Policy Optimization",
    arxiv="2603.02701",
    evidence="our reading",
    parent="grpo",
    formula="""\
J = 1/K sum_k sum_e A_e log pi(e) - beta k3,  e the decisions (edge present or absent) of graph k
S_e = mean reward of the graphs of the group with decision e;  A_e = (S_e - mean(S)) / std(S)""",
    differences=(
        PaperDifference(
            "policy",
            "graph attention network, Bernoulli edges, acyclic",
            "not released",
            "a text with a digit per edge, the trained language model; the agents are the task's verifier",
        ),
        PaperDifference(
            "absent edges",
            "not obtained",
            "not released",
            'decisions like present ones; present = "1": present edges alone (both inferred)',
        ),
        PaperDifference("loss", "a KL-regularized loss; form not obtained", "not released", "above (inferred)"),
        PaperDifference("KL coefficient", "not obtained", "not released", "0.04, as in GRPO (inferred)"),
        PaperDifference("std", "not obtained", "not released", "ddof 0, plus 1e-8 (inferred)"),
        PaperDifference("advantage per graph", "an ablation", "not released", 'level = "graph"'),
        PaperDifference("group size", "16 (recalled)", "not released", "16"),
        PaperDifference("minibatches", "not obtained", "not released", "1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[graph_grpo]",
        "tests/golden/test_methods.py::test_whole_path[graph_grpo, present edges]",
        "tests/golden/test_methods.py::test_whole_path[graph_grpo, graph level]",
        "tests/golden/test_agents.py::test_edge_success_rates",
        "tests/golden/test_agents.py::test_edges_of_groups_without_contrast",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="edges",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
    ),
)
