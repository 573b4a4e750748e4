"""Metrics of what a strategy and a curriculum did in an iteration: samples by role, other prompts, sizes of groups."""

from collections import Counter
from collections.abc import Sequence

from groupwise.data import SAMPLED, WRITTEN, Curriculum, Rollout, Strategy
from groupwise.rollout.curricula.shuffled import Shuffled
from groupwise.rollout.strategies.agents import AgentEpisodes
from groupwise.rollout.strategies.independent import Independent, Turns

ROLES = "rollout/roles"
"""The prefix of the metrics with the number of samples of a role."""


def mechanism_numbers(
    rollouts: Sequence[Rollout], strategy: Strategy, curriculum: Curriculum, trained_roles: Sequence[str]
) -> dict[str, float]:
    """Counts over all samples of an iteration, by metric.

    Each trained role beside answers has its number of samples, also if it is 0. Without a strategy or curriculum of a
    method there are no other numbers: all prompts then have the same number of answers. No rollouts have no numbers.
    """
    if not rollouts:
        return {}
    samples = [(rollout.draw.prompt.token_ids, sample) for rollout in rollouts for sample in rollout.samples]
    roles = Counter(dict.fromkeys(trained_roles, 0))
    roles.update(sample.role for _, sample in samples)
    numbers = {f"{ROLES}/{role}": float(n) for role, n in sorted(roles.items()) if role != "answer"}
    if isinstance(strategy, AgentEpisodes | Independent | Turns) and isinstance(curriculum, Shuffled):
        return numbers
    answers = [(prompt, sample) for prompt, sample in samples if sample.role == "answer"]
    sizes = [sum(sample.role == "answer" for sample in rollout.samples) for rollout in rollouts]
    other = sum(sample.prompt_views.get(SAMPLED, sample.context) != prompt for prompt, sample in answers)
    written = sum(bool(s.origin) and all(o == WRITTEN for o in s.origin) for _, s in samples)
    return numbers | {
        "rollout/other_prompt": float(other),
        "rollout/written": float(written),
        "rollout/fewest_answers": float(min(sizes)),
        "rollout/most_answers": float(max(sizes)),
    }
