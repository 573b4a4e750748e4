"""The methods of the family `agents`, transcribed from their papers and specifications."""

from collections.abc import Callable

import numpy as np

from groupwise.methods import Method, graph_grpo, m_grpo, parrot, trustgeogen
from tests.golden.papers_reward import clipped, token_mean
from tests.golden.whole_path import Answer, Groups, k3, live, scores, trained, z


def paper_graph_grpo(groups: Groups, present: str = "", kl: float = 0.04):
    """An edge is a token at a position; with `present`, only the tokens with this text count."""

    def is_edge(o: Answer, token_index: int) -> bool:
        return not present or o.text[2 * token_index : 2 * token_index + 2] == present

    total, graphs = 0.0, 0
    for group in groups:
        success: dict[tuple[int, int], list[float]] = {}
        edges = [[(t, p) for t, p in enumerate(o.token_index) if is_edge(o, p)] for o in group]
        for o, mine in zip(group, edges):
            for _, token_index in mine:
                success.setdefault((token_index, o.tokens[token_index]), []).append(o.score)
        s = np.array([np.mean(rewards) for rewards in success.values()])
        a = dict(zip(success, (s - s.mean()) / (s.std() + 1e-8))) if success else {}
        for o, mine in zip(group, edges):
            total += sum(a[token_index, o.tokens[token_index]] * o.l[t] for t, token_index in mine) - kl * k3(o).sum()
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
    """Each group is one of main agents or one of helpers, and weighs the same. A readable wrong answer has 0.1."""
    total = 0.0
    for group in groups:
        rewards = np.array([1.0 if o.right else 0.1 if o.readable else 0.0 for o in group])
        for o, a in trained(group, z(rewards)):
            total += clipped(o, a, 0.2, 0.28).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_trustgeogen(groups: Groups):
    """Parts of a verdict are whether the answer reached the goal, and its share of verified steps."""
    rewards = [np.array([o.part("reached") + 0.5 * o.part("leading") for o in group]) for group in groups]
    return token_mean(groups, [list(z(r)) for r in rewards])


def paper_strict(groups: Groups):
    return token_mean(groups, [list(z(np.array([float(o.right) for o in group]))) for group in groups])


def paper_parrot(groups: Groups):
    """A subscore of a verdict is whether the answer gave in."""
    rewards = [np.array([o.right - 0.5 * o.part("gave_in") for o in group]) for group in groups]
    return token_mean(groups, [list(z(r)) for r in rewards])


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "graph_grpo": (paper_graph_grpo, graph_grpo(), 0.3),
    "m_grpo": (paper_m_grpo, m_grpo(), 0.3),
    "trustgeogen": (paper_trustgeogen, trustgeogen(), 0.3),
    "parrot": (paper_parrot, parrot(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "graph_grpo, present edges": (lambda groups: paper_graph_grpo(groups, "ab"), graph_grpo(present="ab"), 0.3),
    "graph_grpo, graph level": (paper_per_graph, graph_grpo(level="graph"), 0.3),
    "trustgeogen, strict": (paper_strict, trustgeogen(process="strict"), 0.3),
}
"""Variants of the methods, under names of their own."""
