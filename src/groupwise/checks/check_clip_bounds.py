"""Whether clip bounds fit the spread of the ratios: by the length of answers before a run, by its own ratios in a run.

A bound narrower than the spread discards answers by chance: a clipped token has no gradient. The bounds of GSPO, 3e-4
and 4e-4, are made for answers of thousands of tokens (docs/studies/signal-kept.md).
"""

import math
from collections.abc import Mapping
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.data import CLIPPED
from groupwise.methods import Method
from groupwise.objective import Clip, DualClip, sequence_ratio, sequence_ratio_per_token, token_ratio

MANY = 0.25
"""Bounds that discard more than this share of the tokens give a note or a warning."""
TOKEN_SPREAD = 0.02
"""The standard deviation of a token's log-ratio that was measured with GSPO on the packaged model, at a learning rate
of 1e-4 (docs/studies/ratio-drift.md)."""
TAILS = 4.65
"""The percentiles 1 and 99 of a normal number are this many standard deviations apart."""
SPREADS = 2.0
"""Bounds of this many standard deviations fit: they discard 2 % of normal log-ratios."""


def clip_of(method: Method) -> Clip | DualClip | None:
    """The surrogate whose `low` and `high` are distances from 1; None for another one, or with a schedule of them."""
    surrogate = method.objective.surrogate
    scheduled = any(path.startswith("objective.surrogate") for path, _ in method.schedules)
    return surrogate if isinstance(surrogate, Clip | DualClip) and not scheduled else None


def narrow_bounds(recipe: Recipe) -> list[str]:
    """A note if the bounds discard many tokens at the token spread that was measured elsewhere. Else no note.

    The mean of L independent log-ratios spreads by 1 / sqrt(L) of one of them, and L is at most `sampling.max_tokens`:
    shorter answers spread more. With one step per iteration all ratios are 1.
    """
    method, tokens = recipe.method, recipe.sampling.max_tokens
    clip, one_step = clip_of(method), (method.minibatches, method.epochs) == (1, 1)
    if clip is None or (one_step and method.old_logprobs == "learner"):
        return []
    if clip.ratio in (sequence_ratio, sequence_ratio_per_token):
        of_what, spread = f"the mean of up to {tokens} tokens (sampling.max_tokens)", TOKEN_SPREAD / math.sqrt(tokens)
    elif clip.ratio == token_ratio:
        of_what, spread = "it", TOKEN_SPREAD
    else:
        return []
    share = normal_tail(clip.low, clip.high, spread)
    if share <= MANY:
        return []
    measured = f"if a token's log-ratio spreads by {TOKEN_SPREAD:g}, as on the packaged model, {of_what} spreads by"
    fit = f"then low = high = {SPREADS * spread:.2g} fits; the run compares the bounds with its own ratios"
    what = f"the clip bounds {clip.low:g} and {clip.high:g} may discard {share:.0%} of the tokens"
    return [f"  note: {what}: {measured} {spread:.2g}; {fit}"]


def normal_tail(low: float, high: float, spread: float) -> float:
    """The share that bounds discard of ratios whose logarithms are normal around 0, with as many advantages below 0.

    >>> round(normal_tail(3e-4, 4e-4, 0.02 / math.sqrt(64)), 2), round(normal_tail(2.0, 2.0, 1.0), 3)
    (0.44, 0.023)
    """
    return sum(math.erfc(bound / spread / math.sqrt(2)) for bound in (low, high)) / 4


def discarded(method: Method, line: Mapping[str, Any]) -> str | None:
    """A warning if the bounds discarded many tokens of an iteration, with bounds that fit its ratios. Else None.

    `line` has the iteration's metrics. Bounds at the percentiles 1 and 99 of the ratios hold 98 % of them. Old
    log-probs of an engine that differs shift all log-ratios below 0, by the KL divergence per token. If the median is
    farther from 1 than the ratios spread, no bounds around 1 fit.

    >>> from groupwise.methods import gspo
    >>> line = {"clip_ratio/region_mean": 0.48, "ratio/p01": 0.97, "ratio/p50": 1.0, "ratio/p99": 1.03}
    >>> print(str(discarded(gspo(), line)).replace("; ", "\\n"))
    the clip bounds 0.0003 and 0.0004 discard 48% of the tokens
    low = 0.03 and high = 0.03 fit: they hold 98% of the ratios
    """
    clip, share = clip_of(method), line.get(CLIPPED, 0.0)
    if clip is None or share <= MANY:
        return None
    what = f"the clip bounds {clip.low:g} and {clip.high:g} discard {share:.0%} of the tokens"
    low, median, high = (line[f"ratio/p{percent}"] - 1 for percent in ("01", "50", "99"))
    if method.old_logprobs == "engine" and abs(median) > (high - low) / TAILS:
        fix = "take old log-probs of the learner: method.old_logprobs learner"
        return f"{what}: the median ratio is shifted by {median:+.2g}, so no bounds around 1 fit; {fix}"
    return f"{what}; low = {max(0.0, -low):.2g} and high = {max(0.0, high):.2g} fit: they hold 98% of the ratios"
