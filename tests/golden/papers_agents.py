"""The methods of the family `agents`, transcribed from their papers and specifications."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from groupwise.methods import Method, graph_grpo, m_grpo, parrot, trustgeogen
from groupwise.rewards import AddPart, Correctness
from tests.golden.papers_reward import clipped, k3, token_mean
from tests.golden.whole_path import Groups, scores, z


def paper_graph_grpo(groups: Groups, present: str = "", kl: float = 0.04):
    """An edge is a token at a position; with `present`, only the tokens with this text count."""
    total, graphs = 0.0, 0
    for group in groups:
        success: dict[tuple[int, int], list[float]] = {}
        edges = [[t for t in range(len(o.l)) if o.text[2 * t : 2 * t + 2] == present or not present] for o in group]
        for o, mine in zip(group, edges):
            for t in mine:
                success.setdefault((t, o.tokens[t]), []).append(o.score)
        s = np.array([np.mean(rewards) for rewards in success.values()])
        a = dict(zip(success, (s - s.mean()) / (s.std() + 1e-8)))
        for o, mine in zip(group, edges):
            total += sum(a[t, o.tokens[t]] * o.l[t] for t in mine) - kl * k3(o).sum()
            graphs += 1
    return total / graphs


def paper_per_graph(groups: Groups):
    total, graphs = 0.0, 0
    for group in groups:
        r = scores(group)
        for o, a in zip(group, (r - r.mean()) / (r.std() + 1e-8)):
            total += (a * o.l - 0.04 * k3(o)).sum()
            graphs += 1
    return total / graphs


def paper_m_grpo(groups: Groups):
    """Each group is one of main agents or one of helpers, and weighs the same."""
    total = 0.0
    for group in groups:
        for o, a in zip(group, z(np.array([1.0 if o.score == 1 else 0.1 for o in group]))):
            total += clipped(o, a, 0.2, 0.28).sum() / len(o.l) / len(group)
    return total / len(groups)


def paper_trustgeogen(groups: Groups):
    """The part of an answer is both whether it reached the goal and its share of verified steps."""
    return token_mean(groups, [list(z(np.array([o.part + 0.5 * o.part for o in group]))) for group in groups])


def paper_strict(groups: Groups):
    return token_mean(groups, [list(z(scores(group))) for group in groups])


def paper_parrot(groups: Groups):
    """The part of an answer is whether it gave in."""
    return token_mean(groups, [list(z(np.array([o.score - 0.5 * o.part for o in group]))) for group in groups])


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "graph_grpo": (paper_graph_grpo, graph_grpo(), 0.3),
    "m_grpo": (paper_m_grpo, m_grpo(), 0.3),
    "trustgeogen": (
        paper_trustgeogen,
        replace(trustgeogen(), shaping=(AddPart("chain_true"), AddPart("chain_true", 0.5))),
        0.3,
    ),
    "parrot": (paper_parrot, replace(parrot(), shaping=(Correctness(), AddPart("chain_true", -0.5))), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "graph_grpo, present edges": (lambda groups: paper_graph_grpo(groups, "ab"), graph_grpo(present="ab"), 0.3),
    "graph_grpo, graph level": (paper_per_graph, graph_grpo(level="graph"), 0.3),
    "trustgeogen, strict": (paper_strict, trustgeogen(process="strict"), 0.3),
}
"""Variants of the methods, under names of their own."""
