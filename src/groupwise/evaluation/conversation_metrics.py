"""Metrics of conversations with an environment: turns, share of tokens not from the model, and counts of tool calls."""

from collections.abc import Sequence

from groupwise.data import REQUESTS, Rollout, Sample


def describe_conversations(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of all conversations in the rollouts, trained on or not, graded or not; empty if there are none.

    `turns/mean` and `turns/max` count the model's turns. `turns/environment_tokens` is the share of all tokens that
    the model did not generate. `counts/<name>` is the mean over conversations of a count in `Sample.counts`.
    `episodes/<name>` are means over runs of an agent.
    """
    conversations = [s for f in rollouts for s in f.samples if s.role == "answer" and s.is_conversation]
    if not conversations:
        return {}
    turns, tokens = [len(s.turns) for s in conversations], sum(len(s.tokens) for s in conversations)
    names = sorted({name for s in conversations for name in s.counts})
    return {
        "turns/mean": sum(turns) / len(conversations),
        "turns/max": float(max(turns)),
        "turns/environment_tokens": sum(map(_external_tokens, conversations)) / max(1, tokens),
        **{f"counts/{name}": sum(s.counts.get(name, 0) for s in conversations) / len(conversations) for name in names},
        **_episodes(rollouts),
    }


def _episodes(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The means over runs of an agent: its samples, requests and sampled tokens; empty without agents."""
    samples = [(f.draw.id, s) for f in rollouts for s in f.samples if REQUESTS in s.counts]
    if not samples:
        return {}
    episodes = len({(draw, s.stream[:1]) for draw, s in samples})
    return {
        "episodes/samples": len(samples) / episodes,
        "episodes/requests": sum(s.counts[REQUESTS] for _, s in samples) / episodes,
        "episodes/tokens": sum(sum(s.trained) for _, s in samples) / episodes,
    }


def _external_tokens(sample: Sample) -> int:
    return len(sample.trained) - sum(sample.trained)
