"""The regimes: workloads that both systems run, as values. Standard library only, since TRL's process imports them."""

import math
from dataclasses import dataclass, field, replace
from random import Random
from statistics import NormalDist
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """The shape of a decoder with random weights and a tied embedding."""

    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int = 1024
    model_family: Literal["llama", "qwen2"] = "llama"

    @property
    def layer(self) -> int:
        """Weights in the matrix products of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden_size * (2 * queries + 2 * keys + 3 * self.mlp_width)

    @property
    def head(self) -> int:
        """Weights of the head."""
        return self.vocabulary_size * self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Each sample has `tokens` tokens."""

    tokens: int

    def of(self, iteration: int, rows: int) -> list[int]:
        return [self.tokens] * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Heavy-tailed lengths: log-normal around `median`, within `least` and `most`.

    Each iteration has the same lengths, the quantiles, in another order.

    >>> sorted(Ragged(least=8, median=48, most=512).of(0, 8))
    [10, 20, 29, 41, 56, 78, 117, 223]
    """

    least: int
    median: int
    most: int
    spread: float = 1.0

    def of(self, iteration: int, rows: int) -> list[int]:
        distribution = NormalDist(math.log(self.median), self.spread)
        drawn = [round(math.exp(distribution.inv_cdf((i + 0.5) / rows))) for i in range(rows)]
        lengths = [min(max(n, self.least), self.most) for n in drawn]
        Random(f"lengths {iteration}").shuffle(lengths)
        return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One workload: its model, its samples, its objective, and the number of timed iterations.

    `letter` names it and its files. `lengths` is None if samples end by themselves. `micro_batch` is TRL's fastest in
    the sweep. `target` is the target ratio of times, `memory` that of peaks above the imports (0: none). With the loss
    `sft` or `dpo`, rows store the answers: `lengths` are those of the rows, and `group` counts the answers of a row.
    """

    letter: str
    title: str
    target: float
    memory: float = 0.0
    net: Net | None = None  # None: the packaged calculator model and its task
    prompts: int
    group: int
    prompt_tokens: int = 0
    max_tokens: int
    lengths: Fixed | Ragged | None = None
    loss: Literal["grpo", "gspo", "dapo", "sft", "dpo"] = "grpo"
    low: float = 0.2
    high: float = 0.2
    minibatches: int = 1
    epochs: int = 1
    lr: float = 1e-5
    decay: Literal["constant", "linear"] = "constant"
    warmup: int = 1
    timed: int
    micro_batch: int
    full: bool = field(default=False)  # only in bench-full

    @property
    def rows(self) -> int:
        """Samples per iteration."""
        return self.prompts * self.group

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row that store its answers; none if answers are sampled."""
        return {"sft": ("completion",), "dpo": ("chosen", "rejected")}.get(self.loss, ())

    @property
    def turns(self) -> range:
        """The first iteration of each turn."""
        return range(self.warmup, 1 << 20, self.timed)

    @property
    def minibatch(self) -> int:
        """Samples per optimizer step."""
        return self.rows // self.minibatches

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """TRL's possible micro-batches: those of 8, 32, 128, 256 that divide a step, and a whole step.

        Those of stored answers count rows: from 1 to a whole step.
        """
        if self.columns:
            return tuple(m for m in (1, 2, 4, 8, 16, 32) if self.prompts % m == 0)
        return tuple(sorted({m for m in (8, 32, 128, 256) if self.minibatch % m == 0} | {self.minibatch}))

    def lengths_of(self, iteration: int) -> list[int] | None:
        """The forced length of each sample of an iteration; None if samples end by themselves."""
        return None if self.lengths is None else self.lengths.of(iteration, self.rows)


VOCABULARY = 151_936
"""Qwen's."""

REGIMES = {
    regime.letter: regime
    for regime in (
        Regime(
            letter="a", title="default: the packaged model learns its task", target=2.0,
            prompts=16, group=16, max_tokens=48, loss="gspo", low=0.05, high=0.05, minibatches=4,
            lr=2e-4, decay="linear", warmup=2, timed=8, micro_batch=32,
        ),
        Regime(
            letter="b", title="shared prompts: 512 tokens, group 16, answers 64, 10M parameters", target=5.0,
            memory=0.5,
            net=Net(vocabulary_size=1024, hidden_size=320, layers=8, heads=5, kv_heads=5, head_dim=64, mlp_width=864),
            prompts=1, group=16, prompt_tokens=512, max_tokens=64, lengths=Fixed(tokens=64), timed=1, micro_batch=8,
        ),
        Regime(
            letter="c", title="ragged: answers from 8 to 512, median 48, 2M parameters", target=3.0, memory=0.5,
            net=Net(vocabulary_size=1024, hidden_size=192, layers=4, heads=6, kv_heads=6, head_dim=32, mlp_width=512),
            prompts=2, group=16, prompt_tokens=32, max_tokens=512,
            lengths=Ragged(least=8, median=48, most=512, spread=1.1), timed=1, micro_batch=8,
        ),
        Regime(
            letter="d", title="vocabulary 151,936, width 256, 2 layers", target=2.0, memory=0.3,
            net=Net(vocabulary_size=VOCABULARY, hidden_size=256, layers=2, heads=4, kv_heads=4, head_dim=64,
                    mlp_width=704),
            prompts=2, group=8, prompt_tokens=32, max_tokens=32, lengths=Fixed(tokens=32), timed=1, micro_batch=8,
        ),
        Regime(
            letter="e", title="DAPO's 16 minibatches and 2 epochs on the packaged model", target=2.5,
            prompts=16, group=16, max_tokens=48, loss="dapo", high=0.28, minibatches=16, epochs=2,
            lr=5e-5, warmup=1, timed=4, micro_batch=16,
        ),
        Regime(
            letter="g", title="Qwen2.5-0.5B's shape with 2 layers", target=1.5,
            net=Net(
                vocabulary_size=VOCABULARY, hidden_size=896, layers=2, heads=14, kv_heads=2, head_dim=64,
                mlp_width=4864, model_family="qwen2",
            ),
            prompts=1, group=8, prompt_tokens=128, max_tokens=32, lengths=Fixed(tokens=32), timed=1, micro_batch=8,
            full=True,
        ),
    )
}  # fmt: skip

SMALL = Regime(
    letter="f",
    title="growth",
    target=0.0,
    net=Net(
        vocabulary_size=4096,
        hidden_size=128,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=32,
        mlp_width=352,
        max_positions=4096,
    ),
    prompts=4,
    group=8,
    prompt_tokens=64,
    max_tokens=32,
    lengths=Fixed(tokens=32),
    timed=3,
    micro_batch=8,
    full=True,
)
"""The smallest regime of the growth measurements."""


def grown(axis: str, times: int) -> Regime:
    """The small regime with one size `times` as large; groups start at 16, prompts and answers at 128.

    >>> grown("vocabulary", 16).net.vocabulary_size, grown("answer", 2).lengths
    (65536, Fixed(tokens=256))
    """
    named = replace(SMALL, letter=f"f-{axis}-{times}")
    assert named.net is not None
    if axis == "group":
        return replace(named, group=16 * times)
    if axis == "vocabulary":
        return replace(named, net=replace(named.net, vocabulary_size=named.net.vocabulary_size * times))
    if axis == "prompt":
        return replace(named, prompt_tokens=128 * times)
    return replace(named, max_tokens=128 * times, lengths=Fixed(tokens=128 * times))


PINNED = Regime(
    letter="h",
    title="two engines and a pinned learner: answers from 8 to 128, median 32, 10M parameters",
    target=0.0,
    net=Net(vocabulary_size=1024, hidden_size=320, layers=8, heads=5, kv_heads=5, head_dim=64, mlp_width=864),
    prompts=2,
    group=16,
    prompt_tokens=64,
    max_tokens=128,
    lengths=Ragged(least=8, median=32, most=128),
    timed=3,
    micro_batch=8,
    full=True,
)
"""The work of (h), which runs on two cores in several configurations."""

STORED = {
    regime.letter: regime
    for regime in (
        Regime(
            letter="sft", title="demonstrations: 32 rows a step", loss="sft", prompts=32, group=1, micro_batch=1,
            target=0.0, net=PINNED.net, prompt_tokens=64, max_tokens=128, lengths=PINNED.lengths, timed=1, full=True,
        ),
        Regime(
            letter="dpo", title="preference pairs: 16 pairs a step, with a reference model", loss="dpo", prompts=16,
            group=2, micro_batch=1,
            target=0.0, net=PINNED.net, prompt_tokens=64, max_tokens=128, lengths=PINNED.lengths, timed=1, full=True,
        ),
    )
}  # fmt: skip
"""The regimes of stored answers, in which nothing is sampled."""
STORED_MICROBATCH_TOKENS = 1024
"""Groupwise's microbatch in them: as fast as the default of 16,384, with half of its memory or less."""

AXES = ("group", "vocabulary", "prompt", "answer")
DOUBLINGS = (1, 2, 4, 8, 16)
GROWTH = {axis: tuple(grown(axis, times) for times in DOUBLINGS) for axis in AXES}
"""For each size, the regimes of four doublings."""
ALL_REGIMES = {**REGIMES, **STORED, "h": PINNED, **{one.letter: one for series in GROWTH.values() for one in series}}
"""All regimes by letter."""
