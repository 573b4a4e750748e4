"""The verifier `SpanningGraph`: the edges of a graph in the task `edges`."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.edges import EDGES, Edges, joins_all

__all__ = ["SpanningGraph"]


@verdicts_have("joined", "allowed", "edges")
@dataclass(frozen=True, slots=True)
class SpanningGraph(VerifierSettings):
    """Right if the graph joins all nodes and has no forbidden edge. An answer without a digit per edge is malformed.

    Subscores: `joined` (1 if all nodes are joined), `allowed` (the share of forbidden edges that are left out), `edges`
    (the number of edges in the graph).
    """

    supported_tasks: ClassVar[tuple[type, ...]] = (Edges,)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if len(sample.text) != len(EDGES) or not set(sample.text) <= {"0", "1"}:
            return Verdict(Outcome.malformed, subscores={"joined": 0.0, "allowed": 0.0, "edges": 0.0})
        graph = [edge for edge, digit in zip(EDGES, sample.text) if digit == "1"]
        forbidden = prompt.row["answer"]
        joined, allowed = joins_all(graph), sum(edge not in graph for edge in forbidden) / len(forbidden)
        parts = {"joined": float(joined), "allowed": allowed, "edges": float(len(graph))}
        return Verdict(Outcome(int(joined and allowed == 1)), subscores=parts)
