"""The records of an iteration: its metrics, a row per sample, and columns of numbers per token."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.data import (
    GRAD_NORM,
    LARGEST_GAP,
    LOSS,
    NO_SIGNAL,
    REWARD,
    SAMPLED,
    STALENESS_MAX,
    STALENESS_MEAN,
    TRAINED_TOKENS,
    VERSIONS,
    ZERO_LOSS,
    Batch,
    Ids,
    Outcome,
    Rollout,
    Sample,
    declares,
    key_of,
    label_of,
    notes,
    with_fields,
)
from groupwise.data.rollout_json import to_json
from groupwise.learner import StepResult
from groupwise.methods import Method
from groupwise.objective import (
    Objective,
    ReportsClipping,
    comparable,
    describe_gap,
    describe_preferences,
    describe_samples,
    describe_step,
)


def iteration_metrics(batch: Batch, results: Sequence[StepResult], objective: Objective) -> dict[str, Any]:
    """An iteration's metrics, over its samples and over the tokens of its steps (a token counts once per step).

    Skipped steps are left out, unless all were skipped.
    """
    line: dict[str, Any] = describe_samples(batch)
    if steps := _counted(results):
        step = Batch.joined([t.batch for t in steps])
        line |= describe_step(step, objective)
        if LARGEST_GAP in line and results[0].batch.logp is not None and _old_are_the_engines(step):
            # The first step used the weights of the engine, so it has the gap.
            line |= describe_gap(results[0].batch.logp, results[0].batch)
        fields = {LOSS: "loss", GRAD_NORM: "grad_norm", "grad_norm_clipped": "grad_norm_clipped"}
        line |= {name: sum(getattr(t, field) for t in steps) / len(steps) for name, field in fields.items()}
        line["learning_rate"] = steps[-1].learning_rate
        if choices := sum(t.route_count for t in steps):
            line["routing/changed"] = sum(t.changed_route_count for t in steps) / choices
        for name in steps[0].auxiliary_losses:
            line[name] = sum(t.auxiliary_losses[name] for t in steps) / len(steps)
    line["steps_skipped"] = sum(bool(t.skip_reason) for t in results)
    line[ZERO_LOSS] = len(results) == 1 and _zero_by_construction(results[0])
    return line


def _old_are_the_engines(step: Batch) -> bool:
    """Whether the old log-probs are those of the engine, in the learner's dtype."""
    known = comparable(step) & ~step.logp_engine.isnan()
    return torch.equal(step.logp_old[known], step.logp_engine[known].to(step.logp_old.dtype))


OF_SAMPLING = ("reward/", "reward_", "groups/", "outcome/", "score/", "rollout/")
"""The beginnings of the names of metrics about rewards, verdicts and the rounds of sampling."""


def of_stored_answers(line: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """An iteration's metrics for stored answers: without rewards, outcomes and counts of samples, which the rows fix.

    The trained tokens are those of the assistant alone.
    """
    left_out = {name for name in line if name in (REWARD, NO_SIGNAL) or name.startswith(OF_SAMPLING)}
    return {name: value for name, value in line.items() if name not in left_out} | {TRAINED_TOKENS: batch.tokens}


OF_POLICY = ("entropy", "ratio/", "advantage/")
"""The beginnings of the names of metrics about a distribution of tokens and its change."""


def without_policy(line: Mapping[str, Any]) -> dict[str, Any]:
    """An iteration's metrics without those of a policy, which a reward model is not."""
    return {name: value for name, value in line.items() if not name.startswith(OF_POLICY)}


def lag_metrics(batch: Batch) -> dict[str, float]:
    """The staleness of the sampled tokens in versions of the weights, and the number of versions that sampled them."""
    lags = batch.staleness[~batch.logp_engine.isnan()]
    if not len(lags):
        return {}
    return {
        STALENESS_MEAN: float(lags.double().mean()),
        STALENESS_MAX: float(lags.max()),
        VERSIONS: float(len(lags.unique())),
    }


def has_engine_logprobs(results: Sequence[StepResult]) -> bool:
    """Whether the engine-learner gap can be measured: a token was sampled with the learner's weights and prompt."""
    return any(bool(comparable(t.batch).any()) for t in _counted(results))


def sample_lines(
    rollouts: Sequence[Rollout], batch: Batch, decode: Callable[[Ids], str] = lambda ids: ""
) -> list[dict[str, Any]]:
    """One record per sample, as JSON: prompt, text, verdict, reward. It includes samples that are not trained.

    A sample that was sampled from another prompt than the problem's, such as one with a hint, also has the text of that
    prompt, as `decode` gives it: `sampled_from`. `views` maps its other prompts to their indices in the column
    `contexts`, and `parent` is the index of its parent among the samples of the draw. `requests` are those of an agent
    (`AgentRequest`), whose answers are tokens of the sample.
    """
    reward = dict(zip(batch.sample_keys, batch.reward.tolist())) if batch.reward is not None else {}
    advantage = {}
    if batch.advantage is not None:
        advantage = dict(zip(batch.sample_keys, batch.sequences.mean(batch.advantage).tolist()))
    index = context_index([sample for rollout in rollouts for sample in rollout.samples])
    return [
        {
            "draw": rollout.draw.id,
            "prompt_id": rollout.draw.prompt.id,
            "prompt": rollout.draw.prompt.text,
            "gold": rollout.draw.prompt.row.get("answer"),
            "group": sample.group,
            "role": sample.role,
            **_prompt_fields(rollout, sample, index, decode),
            "text": sample.text,
            "finish": sample.finish.name if sample.finish is not None else None,
            **_verdict_fields(sample),
            "reward": reward.get(key_of(rollout, sample)),
            "advantage": advantage.get(key_of(rollout, sample)),
            "length": len(sample.tokens),
            "limit": sample.limit,
            **({"turns": len(sample.turns), "counts": dict(sample.counts)} if sample.is_conversation else {}),
            "selected": rollout.selected is None or rollout.selected[i],
            "dropped": rollout.cause,
        }
        for rollout in rollouts
        for i, sample in enumerate(rollout.samples)
    ]


def token_columns(
    rollouts: Sequence[Rollout], results: Sequence[StepResult], objective: Objective
) -> dict[str, Tensor]:
    """Tensors with an entry per token of all samples: ids, log-probs, advantages; NaN for tokens that were not trained.

    Samples are in the order of `sample_lines`. `gradient` is `d loss / d logp`, `share` the aggregate's factor. A
    surrogate with bounds has `clip`: -1 or 1 where its lower or its upper bound is active. `weight`, the correction of
    the engine's gap, is present if any differs from 1. `routes` are the experts of the preceding token. They are
    present if the engine recorded them. `contexts` are the ids of the prompts and views, each once; `context` is
    each sample's index into them.
    """
    samples = [s for f in rollouts for s in f.samples]
    lengths = torch.tensor([len(s.tokens) for s in samples], dtype=torch.long)
    keys = [key_of(f, s) for f in rollouts for s in f.samples]
    start = dict(zip(keys, (lengths.cumsum(0) - lengths).tolist()))
    columns = {name: torch.full((int(lengths.sum()),), torch.nan) for name in TRAINED}
    if isinstance(objective.surrogate, ReportsClipping):
        columns["clip"] = torch.zeros(int(lengths.sum()), dtype=torch.int8)
    for result in results:
        batch = result.batch.to("cpu")
        first = torch.tensor([start[key] for key in batch.sample_keys], dtype=torch.long)
        rows = batch.sequences.spread(first) + batch.index_in_sample
        for name, x in trained_numbers(batch, result.logp_gradient, objective).items():
            columns[name][rows] = x.to(columns[name])
    if not bool((columns["weight"].nan_to_num(1.0) != 1).any()):
        del columns["weight"]
    return {
        "lengths": lengths,
        "tokens": torch.tensor([i for s in samples for i in s.tokens], dtype=torch.int32),
        "ends": torch.tensor([i for s in samples for i in _ends(s)], dtype=torch.int32),
        "origin": torch.tensor([i for s in samples for i in s.origin], dtype=torch.int32),
        "logp_engine": torch.tensor([x for s in samples for x in s.logp], dtype=torch.float32),
        **columns,
        **_contexts(samples),
        **_routes([(s.routes[len(s.context) - 1 :], len(s.tokens)) for s in samples]),
    }


TRAINED = ("logp", "ratio", "advantage", "share", "weight", "gradient")
"""The columns of numbers that a step has for each trained token."""


def trained_numbers(batch: Batch, gradient: Tensor | None, objective: Objective) -> dict[str, Tensor]:
    """The numbers of a step's tokens, on the CPU: TRAINED, and `clip` of a surrogate with bounds."""
    assert batch.logp is not None and batch.logp_old is not None and batch.advantage is not None
    ratio = (batch.logp - batch.logp_old).exp()
    numbers = (batch.logp, ratio, batch.advantage, batch.loss_share, batch.weight, gradient)
    columns = {name: x for name, x in zip(TRAINED, numbers, strict=True) if x is not None}
    if isinstance(objective.surrogate, ReportsClipping):
        low, high = objective.surrogate.clipped(batch)
        columns["clip"] = high.to(torch.int8) - low.to(torch.int8)
    return columns


def batch_dump(batch: Batch) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The samples and tensors of a skipped step, from which it can be computed again."""
    lines = [
        {
            "context": list(s.context),
            "tokens": list(s.tokens),
            "text": s.text,
            **_verdict_fields(s),
            **({"path": [b64encode(action).decode() for action in s.actions]} if s.actions else {}),
        }
        for s in batch.samples
    ]
    names = (
        "logp",
        "logp_old",
        "logp_engine",
        "advantage",
        "loss_share",
        "weight",
        "index_in_sample",
        "reward",
        "outcome",
    )
    columns = {name: getattr(batch, name) for name in names}
    columns |= {label_of(measure): x for measure, x in batch.measures.items()}
    tensors = {name: x.contiguous().cpu() for name, x in columns.items() if x is not None}
    routes = [(r, len(s.context) + len(s.tokens) - 1 if s.tokens else 0) for r, s in zip(batch.routes, batch.samples)]
    return lines, {**tensors, "lengths": batch.sequences.lengths.cpu(), **_routes(routes)}


def _contexts(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The token ids of prompts and views, each stored once; `context` has the index of each sample's prompt.

    Prompt i has `context_lengths[i]` ids in `contexts`.
    """
    index = context_index(samples)
    return {
        "context": torch.tensor([index[s.context] for s in samples], dtype=torch.int32),
        "context_lengths": torch.tensor([len(context) for context in index], dtype=torch.long),
        "contexts": torch.tensor([i for context in index for i in context], dtype=torch.int32),
    }


def context_index(samples: Sequence[Sample]) -> dict[Ids, int]:
    """The index of each prompt among the stored ones: the prompts of the samples, then their views."""
    contexts = [*(s.context for s in samples), *(ids for s in samples for ids in s.prompt_views.values())]
    return {context: i for i, context in enumerate(dict.fromkeys(contexts))}


def _prompt_fields(
    rollout: Rollout, sample: Sample, index: Mapping[Ids, int], decode: Callable[[Ids], str]
) -> dict[str, Any]:
    """The fields of a sample's record about its parent, an agent's requests, and prompts besides the problem's."""
    sampled = sample.prompt_views.get(SAMPLED, sample.context)
    text = "" if sampled == rollout.draw.prompt.token_ids else decode(sampled)
    return {
        **({} if sample.parent is None else {"parent": sample.parent}),
        **({"sampled_from": text} if text else {}),
        **({"views": {name: index[ids] for name, ids in sample.prompt_views.items()}} if sample.prompt_views else {}),
        **({"requests": [to_json(request) for request in sample.requests]} if sample.requests else {}),
    }


def _routes(samples: Sequence[tuple[Sequence[bytes], int]]) -> dict[str, Tensor]:
    """The experts of each token, given (routes, number of tokens) per sample: -1 if unknown; {} if all are unknown."""
    size = max((len(row) for routes, _ in samples for row in routes), default=0)
    if not size:
        return {}
    rows = [row or b"\xff" * size for routes, n in samples for row in (*routes[:n], *(b"",) * (n - len(routes)))]
    return {"routes": torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.int16).view(len(rows), -1)}


def _ends(sample: Sample) -> list[int]:
    """For each token, its end position in the sample's text; the end of the text if it was not decoded."""
    undecoded = len(sample.tokens) - len(sample.token_ends)
    return [*sample.token_ends, *[len(sample.text)] * undecoded]


def _verdict_fields(sample: Sample) -> dict[str, Any]:
    verdict = sample.verdict
    if verdict is None:
        return {"outcome": None}
    return {
        "outcome": verdict.outcome.name,
        "score": verdict.value if verdict.outcome is not Outcome.unverifiable else None,
        "subscores": dict(verdict.subscores),
        "feedback": verdict.feedback,
        "cause": verdict.cause,
        **({"steps": dict(verdict.step_scores)} if verdict.step_scores else {}),
    }


@torch.no_grad()
def method_metrics(method: Method, states: Mapping[str, Any], results: Sequence[StepResult]) -> dict[str, float]:
    """The metrics that a method's components report, and the numbers of its states, as `state/NAME`."""
    metrics = {f"state/{name}": float(x) for name, x in states.items() if isinstance(x, int | float)}
    for name, state in states.items():
        numbers = state.items() if isinstance(state, Mapping) else ()
        metrics |= {f"state/{name}/{key}": float(x) for key, x in numbers if isinstance(x, int | float)}
    parts = (*method.shaping, *method.advantage, method.credit, *method.mask, method.objective)
    if any(hasattr(part, "notes") for part in with_fields(parts)):
        metrics |= notes(parts, Batch.joined([result.batch for result in results]))
    if declares(method.strategy, "writes_stored_answers"):
        metrics |= describe_preferences(Batch.joined([r.batch for r in results]), method.objective.surrogate)
    return metrics


def _counted(results: Sequence[StepResult]) -> list[StepResult]:
    """The steps that changed the weights; all steps if none did."""
    return [t for t in results if not t.skip_reason] or list(results)


def _zero_by_construction(result: StepResult) -> bool:
    """Whether all ratios of a step are exactly 1 and its loss is 0 (centred advantages). Its gradient may not be 0."""
    step = result.batch
    assert step.logp is not None and step.logp_old is not None
    return bool((step.logp == step.logp_old).all()) and abs(result.loss) < 1e-6
