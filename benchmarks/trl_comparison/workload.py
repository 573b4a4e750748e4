"""Parameters, FLOPs and bytes of a regime, computed from its sizes. Standard library only."""

from dataclasses import dataclass

from benchmarks.trl_comparison.regimes import Regime


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Multiplications and additions of one iteration; `attention` grows with the square of lengths."""

    linear: float
    attention: float

    @property
    def all(self) -> float:
        return self.linear + self.attention


def forced_lengths(regime: Regime) -> list[int]:
    """The forced lengths of an iteration's samples."""
    lengths = regime.lengths_of(0)
    assert regime.net is not None and lengths is not None, "only a regime with forced lengths can be counted"
    return lengths


def learner(regime: Regime) -> Flops:
    """FLOPs of forward and backward in one epoch, without old log-probs: 6 per weight and token, each prompt once.

    Recomputation that saves memory does not count.
    """
    net, lengths = regime.net, forced_lengths(regime)
    assert net is not None
    trunk = regime.prompts * regime.prompt_tokens + sum(n - 1 for n in lengths)
    linear = 6 * (net.layers * net.layer * trunk + net.head * sum(lengths))
    return Flops(linear=linear, attention=6 * net.layers * attention_pairs(regime))


def engine(regime: Regime) -> Flops:
    """FLOPs of generation: each prompt prefilled once, one forward per token."""
    net, lengths = regime.net, forced_lengths(regime)
    assert net is not None
    trunk = regime.prompts * regime.prompt_tokens + sum(lengths)
    linear = 2 * (net.layers * net.layer * trunk + net.head * sum(lengths))
    return Flops(linear=linear, attention=2 * net.layers * attention_pairs(regime))


def attention_pairs(regime: Regime) -> float:
    """(query, key) token pairs in one layer, times the widths of queries and values.

    Pairs inside a prompt count once for its group.
    """
    net, lengths, prompt = regime.net, forced_lengths(regime), regime.prompt_tokens
    assert net is not None
    prompts = regime.prompts * prompt * (prompt + 1) / 2
    answers = sum(n * prompt + n * (n + 1) / 2 for n in lengths)
    return 2 * net.heads * net.head_dim * (prompts + answers)


def parameters(regime: Regime) -> int:
    """Weights of the regime's model in matrix products; the tied embedding counts once."""
    assert regime.net is not None
    return regime.net.layers * regime.net.layer + regime.net.head


def traffic(regime: Regime) -> float:
    """Minimal bytes of float32 weights that the engine reads: all of them for each token position."""
    return 4.0 * parameters(regime) * max(forced_lengths(regime))
