"""The values that flow from a problem to a gradient, and the protocols that two rooms speak."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from groupwise.data.errors import (
    BadData,
    Diverged,
    Environment,
    GroupwiseError,
    Locked,
    Mismatch,
    NoSignal,
    Storage,
    Unverifiable,
    Usage,
    WorkerLost,
)
from groupwise.data.gap import GAP, GAPS, LARGEST_GAP, gap_bound
from groupwise.data.sample import (
    ENVIRONMENT,
    TEMPLATE,
    WRITTEN,
    Ask,
    Draw,
    Family,
    Finish,
    Ids,
    Outcome,
    Prompt,
    Sample,
    Sampling,
    Span,
    Verdict,
    Words,
)
from groupwise.data.visible import visible

if TYPE_CHECKING:
    from groupwise.data.batch import Batch, family_of, key_of, pack
    from groupwise.data.measures import Entropy, Logp, Measure
    from groupwise.data.parts import couples, name_of, needs, one_per_sequence, scope, weighs
    from groupwise.data.segments import Segments
    from groupwise.data.sockets import (
        Advantage,
        Aggregate,
        Backbone,
        Couples,
        Credit,
        Curriculum,
        Engine,
        Journal,
        Keep,
        Layout,
        LinearHead,
        Mask,
        Memory,
        Penalty,
        Ratio,
        Reply,
        Sampler,
        Scope,
        Shaping,
        Strategy,
        Surrogate,
        Task,
        Verifier,
        Weighs,
        Weight,
        World,
    )

__all__ = [
    "ENVIRONMENT",
    "GAP",
    "GAPS",
    "LARGEST_GAP",
    "TEMPLATE",
    "WRITTEN",
    "Advantage",
    "Aggregate",
    "Ask",
    "Backbone",
    "BadData",
    "Batch",
    "Couples",
    "Credit",
    "Curriculum",
    "Diverged",
    "Draw",
    "Engine",
    "Entropy",
    "Environment",
    "Family",
    "Finish",
    "GroupwiseError",
    "Ids",
    "Journal",
    "Keep",
    "Layout",
    "LinearHead",
    "Locked",
    "Logp",
    "Mask",
    "Measure",
    "Memory",
    "Mismatch",
    "NoSignal",
    "Outcome",
    "Penalty",
    "Prompt",
    "Ratio",
    "Reply",
    "Sample",
    "Sampler",
    "Sampling",
    "Scope",
    "Segments",
    "Shaping",
    "Span",
    "Storage",
    "Strategy",
    "Surrogate",
    "Task",
    "Unverifiable",
    "Usage",
    "Verdict",
    "Verifier",
    "Weighs",
    "Weight",
    "Words",
    "WorkerLost",
    "World",
    "couples",
    "family_of",
    "gap_bound",
    "key_of",
    "name_of",
    "needs",
    "one_per_sequence",
    "pack",
    "scope",
    "visible",
    "weighs",
]


def __getattr__(name: str) -> Any:
    """All but samples and errors when it is asked for: it brings torch, which what only reads files does without."""
    if name in __all__:
        for file in ("batch", "measures", "parts", "segments", "sockets"):
            if name in (found := vars(import_module(f"{__name__}.{file}"))):
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
