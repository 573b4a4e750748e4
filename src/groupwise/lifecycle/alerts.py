"""Warnings on the terminal while a run trains. Some thresholds differ from the report's (`NEAR`)."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.checks.check_clip_bounds import discarded
from groupwise.data import (
    CLIPPED,
    ENTROPY,
    ENTROPY_SHARE,
    ENTROPY_WINDOW,
    LARGEST_GAP,
    NO_SIGNAL,
    REWARD,
    THREAD,
    TRUNCATED,
    UNVERIFIABLE,
    UNVERIFIABLE_HELD_OUT,
    metric_bound,
    roles_of,
)
from groupwise.methods import Method
from groupwise.rollout.strategy_metrics import ROLES
from groupwise.runs.learning_check import is_learning

NEAR = 0.5
"""A warning names a log-prob gap between engine and learner above this fraction of `engine.max_logprob_diff`."""


NEARLY = 0.9
"""A warning says so if at least this share of the groups has equal rewards, and not because all answers are right."""


@dataclass(slots=True, eq=False)
class AlertDetector:
    """Finds problems in the metrics, such as truncated answers or falling entropy. Each kind is returned once."""

    max_logprob_diff: float
    trained_roles: Mapping[str, str] = field(default_factory=dict)
    """The trained roles beside answers, and when a sample of each is made."""
    method: Method | None = None
    """The method whose clip bounds are compared with the ratios; without one they are not."""
    _done: set[str] = field(default_factory=set)
    _start: Mapping[str, Any] = field(default_factory=dict)
    _window: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=ENTROPY_WINDOW))

    def __call__(self, line: Mapping[str, Any]) -> list[str]:
        """The new alerts of an iteration's metrics.

        >>> alerts = AlertDetector(max_logprob_diff=1e-3)
        >>> alerts({"iteration": 3, "completions/clipped_ratio": 0.5})
        ['warning: iteration 3: 50% of the answers hit the length limit; raise sampling.max_tokens']
        >>> alerts({"iteration": 4, "completions/clipped_ratio": 0.6})
        []
        """
        new = {kind: text for kind, text in self._find(line) if kind not in self._done}
        self._done |= new.keys()
        return [f"warning: iteration {line['iteration']}: {text}" for text in new.values()]

    def _find(self, line: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if (share := line.get(TRUNCATED, 0.0)) > metric_bound(TRUNCATED):
            yield TRUNCATED, f"{share:.0%} of the answers hit the length limit; raise sampling.max_tokens"
        if (share := line.get(UNVERIFIABLE_HELD_OUT, 0.0)) > metric_bound(UNVERIFIABLE):
            what = (
                f"{share:.0%} of the held-out answers could not be graded; accuracy and score are those of the others"
            )
            yield UNVERIFIABLE_HELD_OUT, what if share < 1 else "no held-out answer could be graded"
        if (line.get(NO_SIGNAL) == 1 or line.get("rollout/selected") == 0) and line.get("groups/all_right") != 1:
            yield NO_SIGNAL, "no group has a signal: the rewards within each group are equal"
        elif (equal := line.get(NO_SIGNAL, 0.0) - line.get("groups/all_right", 0.0)) >= NEARLY:
            yield NO_SIGNAL, f"{equal:.0%} of the groups have equal rewards, from which nothing is learned"
        for role, when in self.trained_roles.items():
            if line["iteration"] == 1 and line.get(f"{ROLES}/{role}") == 0:
                yield role, f"no sample has the role {role}, which method.trained_roles names: one is made {when}"
        if (gap := line.get(LARGEST_GAP, 0.0)) > NEAR * self.max_logprob_diff:
            yield LARGEST_GAP, f"engine and learner differ by {gap:.3g}; the run stops above {self.max_logprob_diff:g}"
        if self.method is not None and (advice := discarded(self.method, line)) is not None:
            yield CLIPPED, advice
        if ENTROPY in line and REWARD in line:  # stored answers have no reward, and a better fit is less entropy
            highest = max(self._window, key=lambda earlier: earlier[ENTROPY], default=line)
            self._start = self._start or line
            self._window.append(line)
            fell = line[ENTROPY] <= ENTROPY_SHARE * highest[ENTROPY] and highest[ENTROPY] > 0
            if fell and not is_learning(self._start, highest, line):
                fall = f"from {highest[ENTROPY]:.3g} to {line[ENTROPY]:.3g} within {ENTROPY_WINDOW} iterations"
                fix = "lower optimizer.lr, or add EntropyBonus to method.objective.penalties"
                yield ENTROPY, f"entropy fell {fall}; {fix}"


def trained_role_reasons(method: Method) -> dict[str, str]:
    """For each trained role beside answers, when a sample of it is made; for a user's strategy, by the strategy.

    Threads are left out: many agents open one conversation only.

    >>> from groupwise.methods import m_grpo
    >>> from groupwise.rollout.prompt_template import worded
    >>> trained_role_reasons(worded(m_grpo(), "packaged"))
    {'helper': "where a turn of the main agent ends in '=' (request_end)"}
    """
    roles = roles_of(method.strategy) or {}
    return {
        name: roles[name].made_when if name in roles else "by the strategy"
        for name in method.trained_roles
        if name not in ("answer", THREAD)
    }
