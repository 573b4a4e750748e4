"""Simulates engines and learner of a run, event by event: seconds per iteration, idle time, staleness of tokens."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal

SAME = 1e-6
"""Rows whose ends differ by less than this many tokens end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """The numbers that a simulation needs. All times are in seconds.

    An engine with `r` running requests, at most `max_num_seqs`, decodes one token of each in `decode_step_seconds + r *
    decode_row_seconds`. The learner takes `learn_token_seconds` for each token of an iteration and
    `optimizer_step_seconds` besides, then sends the weights in `publish_seconds`, while engines wait. An iteration has
    `prompts_per_iteration` draws of `group_size` samples; `sample_length(draw, sample)` is a sample's number of tokens.
    The learner also forwards `prompt_tokens` tokens of each draw.

    An iteration is launched when at most `max_staleness` iterations before it are neither trained nor published. If
    `pinned`, weights are published only while no row is live, so each sample has one version: with `max_staleness` 0
    engines wait for the learner, with 1 the next iteration is sampled while the learner trains. If not, weights change
    while requests are running.
    """

    engine_count: int
    max_num_seqs: int
    decode_step_seconds: float
    decode_row_seconds: float
    prompts_per_iteration: int
    group_size: int
    prompt_tokens: int
    sample_length: Callable[[int, int], int]
    learn_token_seconds: float
    optimizer_step_seconds: float
    publish_seconds: float
    max_staleness: int

    @property
    def pinned(self) -> bool:
        """Whether each sample has one version."""
        return self.max_staleness <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerBusyTime:
    """A time in which the learner is busy, in seconds from the start: it trains, or it publishes weights."""

    activity_kind: Literal["learn", "publish"]
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The result. `publish_times` are the times of new versions; `trained_tokens_by_iteration` are counts by iteration.

    `largest_staleness` is the largest staleness, in versions, of any trained token; `running_requests` are pairs (time,
    running requests of all engines).
    """

    publish_times: tuple[float, ...]
    trained_tokens_by_iteration: tuple[int, ...]
    largest_staleness: int
    learner_busy_times: tuple[LearnerBusyTime, ...]
    running_requests: tuple[tuple[float, int], ...]

    def seconds(self, warm: int) -> float:
        """Seconds per iteration, without the first `warm` iterations."""
        return (self.publish_times[-1] - self.publish_times[warm - 1]) / (len(self.publish_times) - warm)

    def rate(self, warm: int) -> float:
        """Trained tokens per second, without the first `warm` iterations."""
        return sum(self.trained_tokens_by_iteration[warm:]) / (self.publish_times[-1] - self.publish_times[warm - 1])

    def learning(self, warm: int) -> float:
        """The share of time in which the learner trains, without the first `warm` iterations."""
        return self.busy("learn", self.publish_times[warm - 1], self.publish_times[-1])

    def rows(self, warm: int) -> float:
        """The mean number of running requests, without the first `warm` iterations."""
        return mean_rows(self.running_requests, self.publish_times[warm - 1], self.publish_times[-1])

    def busy(self, kind: str, start: float, end: float) -> float:
        """The share of the time from `start` to `end` that the learner spends on one kind of work."""
        spans = [span for span in self.learner_busy_times if span.activity_kind == kind]
        return sum(max(0.0, min(span.end_seconds, end) - max(span.start_seconds, start)) for span in spans) / (
            end - start
        )


def mean_rows(live: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """The mean number of running requests between two times. `live` holds pairs (time, rows from then on).

    >>> mean_rows([(0.0, 4), (1.0, 2)], 0.0, 2.0)
    3.0
    """
    steps = pairwise([*live, (end, 0)])
    area = sum(rows * max(0.0, min(after, end) - max(time, start)) for (time, rows), (after, _) in steps)
    return area / (end - start)


class SimulatedEngineRequests:
    """The running requests of one simulated engine, which advance together."""

    def __init__(self) -> None:
        self.stamp = 0  # counts changes: an event with an older stamp is void
        self._ends: list[tuple[float, int]] = []  # (position at which the row ends, its iteration)
        self._position = 0.0  # the tokens that a row has which is live from the beginning
        self._time = 0.0  # of `_position`; in the future while weights are loaded
        self._pace = inf  # seconds per token

    def __len__(self) -> int:
        return len(self._ends)

    def advance(self, now: float) -> None:
        """Decode up to the time `now`."""
        if now > self._time:
            self._position += (now - self._time) / self._pace
            self._time = now

    def add(self, iteration: int, length: int, setup: SimulationSetup) -> None:
        """Add a row of this length. The engine has advanced to the present."""
        heapq.heappush(self._ends, (self._position + length, iteration))
        self._changed(setup)

    def ended(self, setup: SimulationSetup) -> list[int]:
        """Remove the rows that have ended; return their iterations."""
        iterations = []
        while self._ends and self._ends[0][0] - self._position < SAME:
            iterations.append(heapq.heappop(self._ends)[1])
        self._changed(setup)
        return iterations

    def pause(self, until: float) -> None:
        """Decode nothing until this time."""
        self._time = until
        self.stamp += 1

    def next_end(self) -> float:
        """The time at which the next row ends, if no other row comes."""
        return self._time + max(0.0, self._ends[0][0] - self._position) * self._pace

    def _changed(self, setup: SimulationSetup) -> None:
        self._pace = setup.decode_step_seconds + setup.decode_row_seconds * len(self._ends) if self._ends else inf
        self.stamp += 1


@dataclass
class _Run:
    """The state of a simulation. The learner is idle, or its `state` lasts until `until`."""

    setup: SimulationSetup
    now: float = 0.0
    version: int = 0
    launched: int = 0  # iterations whose samples an engine or the queue has
    started: int = 0  # iterations that the learner has started
    state: Literal["idle", "learn", "barrier", "publish"] = "idle"
    until: float = inf
    missing: dict[int, int] = field(default_factory=dict)  # samples of an iteration that have not ended
    origin: dict[int, int] = field(default_factory=dict)  # version of the first token of an iteration
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (draw, sample)
    published: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of each launched iteration
    spans: list[LearnerBusyTime] = field(default_factory=list)
    live: list[tuple[float, int]] = field(default_factory=list)
    oldest: int = 0

    def __post_init__(self) -> None:
        self.engines = [SimulatedEngineRequests() for _ in range(self.setup.engine_count)]
        self._events: list[tuple[float, int, int]] = []  # (time, engine, stamp)
        self._rows = 0

    def launch(self) -> None:
        """Launch iterations as far as the staleness allows, and give waiting samples to the least busy engines."""
        s = self.setup
        ahead = self.started if s.pinned and s.max_staleness else self.version + s.max_staleness
        while self.launched <= ahead:
            self.missing[self.launched] = s.prompts_per_iteration * s.group_size
            self.tokens.append(s.prompts_per_iteration * s.prompt_tokens)
            draws = range(self.launched * s.prompts_per_iteration, (self.launched + 1) * s.prompts_per_iteration)
            self.waiting.extend((draw, sample) for draw in draws for sample in range(s.group_size))
            self.launched += 1
        if not self.waiting:
            return
        free = [(len(rows), i) for i, rows in enumerate(self.engines) if len(rows) < s.max_num_seqs]
        for _, i in free:
            self.engines[i].advance(self.now)
        while self.waiting and free:
            count, i = free[0]
            draw, sample = self.waiting.popleft()
            length, iteration = s.sample_length(draw, sample), draw // s.prompts_per_iteration
            self.origin.setdefault(iteration, self.version)
            self.tokens[iteration] += length
            self.engines[i].add(iteration, length, s)
            self._rows += 1
            if count + 1 < s.max_num_seqs:
                heapq.heapreplace(free, (count + 1, i))
            else:
                self.schedule(heapq.heappop(free)[1])
        for _, i in free:
            self.schedule(i)

    def schedule(self, i: int) -> None:
        """Schedule the next end of a row of an engine."""
        rows = self.engines[i]
        if len(rows):
            heapq.heappush(self._events, (rows.next_end(), i, rows.stamp))

    def learn(self) -> None:
        """Publish if the staleness allows it. Train on the next iteration if it is complete."""
        s = self.setup
        if self.state == "barrier" and not (s.pinned and (self._rows or self.waiting)):
            self.begin("publish", s.publish_seconds)
            for i, rows in enumerate(self.engines):
                rows.advance(self.now)
                rows.pause(self.until)
                self.schedule(i)
        if self.state == "idle" and self.missing.get(self.started) == 0:
            del self.missing[self.started]
            self.oldest = max(self.oldest, self.version - self.origin.pop(self.started))
            self.begin("learn", s.learn_token_seconds * self.tokens[self.started] + s.optimizer_step_seconds)
            self.started += 1

    def begin(self, state: Literal["learn", "publish"], seconds: float) -> None:
        """The learner is busy for some seconds from now on."""
        self.state, self.until = state, self.now + seconds
        self.spans.append(LearnerBusyTime(activity_kind=state, start_seconds=self.now, end_seconds=self.until))

    def advance(self) -> None:
        """Go to the next event: the end of a row, or of the learner's work."""
        while self._events and self._events[0][2] != self.engines[self._events[0][1]].stamp:
            heapq.heappop(self._events)
        time = self._events[0][0] if self._events else inf
        assert min(time, self.until) < inf, "nothing is left to happen"
        if self.until <= time:
            self.now, self.until = self.until, inf
            if self.state == "publish":
                self.version += 1
                self.published.append(self.now)
            self.state = "idle" if self.state == "publish" else "barrier"
        else:
            self.now, i, _ = heapq.heappop(self._events)
            self.engines[i].advance(self.now)
            for iteration in self.engines[i].ended(self.setup):
                self.missing[iteration] -= 1
                self._rows -= 1
            self.schedule(i)
        self.learn()
        self.launch()
        self.live.append((self.now, self._rows))


def simulate(setup: SimulationSetup, iterations: int) -> SimulationResult:
    """Simulate a number of iterations. The result depends on the setup alone: nothing is drawn here.

    With staleness 0 an iteration takes the sum of its phases. Rows of 10 tokens at 1 s a token, learning of 5 s and
    publishing of 2 s:

    >>> sizes = dict(engine_count=1, max_num_seqs=4, prompts_per_iteration=1, group_size=4, prompt_tokens=10)
    >>> sizes["max_staleness"] = 0
    >>> seconds = dict(decode_step_seconds=1.0, decode_row_seconds=0.0, learn_token_seconds=0.1)
    >>> seconds["optimizer_step_seconds"] = 0.0
    >>> setup = SimulationSetup(**sizes, **seconds, publish_seconds=2.0, sample_length=lambda d, i: 10)
    >>> simulate(setup, 3).publish_times
    (17.0, 34.0, 51.0)
    """
    run = _Run(setup)
    run.launch()
    run.live.append((0.0, run._rows))
    while len(run.published) < iterations:
        run.advance()
    return SimulationResult(
        publish_times=tuple(run.published),
        trained_tokens_by_iteration=tuple(run.tokens[:iterations]),
        largest_staleness=run.oldest,
        learner_busy_times=tuple(run.spans),
        running_requests=tuple(run.live),
    )
