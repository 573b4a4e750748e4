"""How much a regime asks for, counted from its sizes: parameters, FLOPs, bytes. Standard library only."""

from dataclasses import dataclass

from benchmarks.beside.regimes import Regime


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Multiplications and additions of one iteration; `attention` is what grows with the square of lengths."""

    linear: float
    attention: float

    @property
    def all(self) -> float:
        return self.linear + self.attention


def forced(regime: Regime) -> list[int]:
    """The lengths of an iteration's answers, which a counted regime must force."""
    lengths = regime.lengths_of(0)
    assert regime.net is not None and lengths is not None, "only a regime with forced lengths can be counted"
    return lengths


def learner(regime: Regime) -> Flops:
    """Forward and backward of one sweep without old log-probs: 6 a weight and token, each prompt counted once.

    What is computed again to save memory does not count: it is no work that was asked for.
    """
    net, lengths = regime.net, forced(regime)
    assert net is not None
    trunk = regime.prompts * regime.prompt_tokens + sum(n - 1 for n in lengths)
    linear = 6 * (net.layers * net.layer * trunk + net.head * sum(lengths))
    return Flops(linear=linear, attention=6 * net.layers * seen(regime))


def engine(regime: Regime) -> Flops:
    """Prompts read once and one forward a token."""
    net, lengths = regime.net, forced(regime)
    assert net is not None
    trunk = regime.prompts * regime.prompt_tokens + sum(lengths)
    linear = 2 * (net.layers * net.layer * trunk + net.head * sum(lengths))
    return Flops(linear=linear, attention=2 * net.layers * seen(regime))


def seen(regime: Regime) -> float:
    """Pairs of a token and one that it sees, times the widths of queries and values, in one layer.

    A prompt's own pairs are counted once for its whole group.
    """
    net, lengths, prompt = regime.net, forced(regime), regime.prompt_tokens
    assert net is not None
    own = regime.prompts * prompt * (prompt + 1) / 2
    answers = sum(n * prompt + n * (n + 1) / 2 for n in lengths)
    return 2 * net.heads * net.head_dim * (own + answers)


def parameters(regime: Regime) -> int:
    """Weights of a regime's net that are multiplied, its tied embedding once."""
    assert regime.net is not None
    return regime.net.layers * regime.net.layer + regime.net.head


def traffic(regime: Regime) -> float:
    """Bytes of float32 weights that the engine reads at least: all of them for every round of tokens."""
    return 4.0 * parameters(regime) * max(forced(regime))
