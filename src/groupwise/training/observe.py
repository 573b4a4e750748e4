"""What an iteration leaves: one line of numbers, a line a sample, and the numbers of its tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.data import LARGEST_GAP, Batch, Logp, Outcome, Rollout, Sample, key_of
from groupwise.learner import StepResult
from groupwise.objective import Objective, describe_gap, describe_samples, describe_step


def numbers(batch: Batch, taken: Sequence[StepResult], objective: Objective) -> dict[str, Any]:
    """An iteration's metrics: samples once each, tokens as often as a step saw them, over all steps at once."""
    line: dict[str, Any] = describe_samples(batch)
    if steps := _counted(taken):
        line |= describe_step(Batch.joined([t.batch for t in steps]), objective)
        if line.get(LARGEST_GAP) == 0 and taken[0].batch.logp is not None:
            # The old log-probs are the engine's own; the first step was taken at the weights that sampled.
            line |= describe_gap(taken[0].batch.logp, taken[0].batch)
        mean = [sum(getattr(t, x) for t in steps) / len(steps) for x in ("loss", "grad_norm", "grad_norm_clipped")]
        line |= dict(zip(("loss", "grad_norm", "grad_norm_clipped"), mean))
        line["learning_rate"] = steps[-1].learning_rate
        if choices := sum(t.choices for t in steps):
            line["routing/changed"] = sum(t.changed for t in steps) / choices
        if any(t.balance for t in steps):
            line["routing/balance"] = sum(t.balance for t in steps) / len(steps)
    line["steps_skipped"] = sum(bool(t.skipped) for t in taken)
    line["loss_zero_by_construction"] = len(taken) == 1 and _zero_by_construction(taken[0])
    return line


def engine_sampled(taken: Sequence[StepResult]) -> bool:
    """Whether an engine sampled a token of these steps, so that `numbers` has its gap to the learner."""
    return any(not bool(t.batch.logp_engine.isnan().all()) for t in _counted(taken))


def sample_lines(rollouts: Sequence[Rollout], batch: Batch) -> list[dict[str, Any]]:
    """Every sample of every rollout, kept or not, with what became of it."""
    reward = dict(zip(batch.keys, batch.reward.tolist())) if batch.reward is not None else {}
    advantage = {}
    if batch.advantage is not None:
        advantage = dict(zip(batch.keys, batch.sequences.mean(batch.advantage).tolist()))
    return [
        {
            "draw": rollout.draw.id,
            "prompt_id": rollout.draw.prompt.id,
            "prompt": rollout.draw.prompt.text,
            "gold": rollout.draw.prompt.given.get("answer"),
            "group": sample.group,
            "role": sample.role,
            "text": sample.text,
            "finish": sample.finish.name if sample.finish is not None else None,
            **_said(sample),
            "reward": reward.get(key_of(rollout, sample)),
            "advantage": advantage.get(key_of(rollout, sample)),
            "length": len(sample.tokens),
            **({"turns": len(sample.turns), "counts": dict(sample.counts)} if sample.counts else {}),
            "kept": rollout.selected is None or rollout.selected[i],
            "dropped": rollout.cause,
        }
        for rollout in rollouts
        for i, sample in enumerate(rollout.samples)
    ]


def token_numbers(rollouts: Sequence[Rollout], taken: Sequence[StepResult]) -> dict[str, Tensor]:
    """Per token of every sample, in the order of `sample_lines`; NaN where a token was not trained.

    `routes` are there if the engine wrote them down: the experts that the token before this one went to.
    """
    samples = [s for f in rollouts for s in f.samples]
    lengths = torch.tensor([len(s.tokens) for s in samples], dtype=torch.long)
    keys = [key_of(f, s) for f in rollouts for s in f.samples]
    start = dict(zip(keys, (lengths.cumsum(0) - lengths).tolist()))
    columns = {name: torch.full((int(lengths.sum()),), torch.nan) for name in ("logp", "ratio", "advantage")}
    for batch in (t.batch.to("cpu") for t in taken):
        assert batch.logp is not None and batch.logp_old is not None and batch.advantage is not None
        first = torch.tensor([start[key] for key in batch.keys], dtype=torch.long)
        rows = batch.sequences.spread(first) + batch.place
        columns["logp"][rows] = batch.logp.float()
        columns["ratio"][rows] = (batch.logp - batch.logp_old).exp().float()
        columns["advantage"][rows] = batch.advantage.float()
    return {
        "lengths": lengths,
        "tokens": torch.tensor([i for s in samples for i in s.tokens], dtype=torch.int32),
        "ends": torch.tensor([i for s in samples for i in _ends(s)], dtype=torch.int32),
        "origin": torch.tensor([i for s in samples for i in s.origin], dtype=torch.int32),
        "logp_engine": torch.tensor([x for s in samples for x in s.logp], dtype=torch.float32),
        **columns,
        **_routes([(s.routes[len(s.context) - 1 :], len(s.tokens)) for s in samples]),
    }


def batch_dump(batch: Batch) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """A step whose gradient was not finite, complete enough to compute it again."""
    lines = [{"context": list(s.context), "tokens": list(s.tokens), "text": s.text, **_said(s)} for s in batch.samples]
    names = ("logp", "logp_old", "logp_engine", "advantage", "share", "weight", "place", "reward", "outcome")
    columns = {name: getattr(batch, name) for name in names}
    columns |= {f"logp/{m.model}" if isinstance(m, Logp) else "entropy": x for m, x in batch.measures.items()}
    tensors = {name: x.contiguous().cpu() for name, x in columns.items() if x is not None}
    routes = [(r, len(s.context) + len(s.tokens) - 1 if s.tokens else 0) for r, s in zip(batch.routes, batch.samples)]
    return lines, {**tensors, "lengths": batch.sequences.lengths.cpu(), **_routes(routes)}


def _routes(lines: Sequence[tuple[Sequence[bytes], int]]) -> dict[str, Tensor]:
    """Experts as numbers, of each sample so many lines, -1 where they are not known; nothing if all are not."""
    size = max((len(line) for known, _ in lines for line in known), default=0)
    if not size:
        return {}
    whole = [line or b"\xff" * size for known, n in lines for line in (*known[:n], *(b"",) * (n - len(known)))]
    return {"routes": torch.frombuffer(bytearray(b"".join(whole)), dtype=torch.int16).view(len(whole), -1)}


def _ends(sample: Sample) -> list[int]:
    """Where each token ends in the text; those put behind what was read have no text of their own."""
    unread = len(sample.tokens) - len(sample.ends)
    return [*sample.ends, *[len(sample.text)] * unread]


def _said(sample: Sample) -> dict[str, Any]:
    verdict = sample.verdict
    if verdict is None:
        return {"outcome": None}
    return {
        "outcome": verdict.outcome.name,
        "score": verdict.value if verdict.outcome is not Outcome.unverifiable else None,
        "parts": dict(verdict.parts),
        "feedback": verdict.feedback,
        "cause": verdict.cause,
    }


def _counted(taken: Sequence[StepResult]) -> list[StepResult]:
    """The steps whose numbers count: those that moved the weights, or all where none did."""
    return [t for t in taken if not t.skipped] or list(taken)


def _zero_by_construction(taken: StepResult) -> bool:
    """With centred advantages and a ratio of exactly 1 the value of the loss says nothing; its gradient does."""
    step = taken.batch
    assert step.logp is not None and step.logp_old is not None
    return bool((step.logp == step.logp_old).all()) and abs(taken.loss) < 1e-6
