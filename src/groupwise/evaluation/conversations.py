"""Conversations as numbers: how many turns there were, whose tokens, and what strategy and environment counted."""

from collections.abc import Sequence

from groupwise.data import Rollout, Sample


def describe_conversations(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Of all answers that are conversations, kept or not, judged or not; nothing where there are none.

    `turns/mean` and `turns/max` count the model's turns; `turns/environment_tokens` is the share of all tokens that
    the model did not say; `counts/<name>` is what was counted (`Sample.counts`) per conversation.
    """
    told = [s for f in rollouts for s in f.samples if s.role == "answer" and s.counts]
    if not told:
        return {}
    turns, tokens = [len(s.turns) for s in told], sum(len(s.tokens) for s in told)
    names = sorted({name for s in told for name in s.counts})
    return {
        "turns/mean": sum(turns) / len(told),
        "turns/max": float(max(turns)),
        "turns/environment_tokens": sum(map(_foreign, told)) / max(1, tokens),
        **{f"counts/{name}": sum(s.counts.get(name, 0) for s in told) / len(told) for name in names},
    }


def _foreign(sample: Sample) -> int:
    return len(sample.trained) - sum(sample.trained)
