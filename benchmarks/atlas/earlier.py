"""The effects as they were measured by earlier rules: benchmarks/atlas/earlier.json, a pilot of the present ones.

Those rules had one learning rate for both sides, the packaged one, three seeds, or six where three left the verdict
open, and 128 held-out problems. At equal tokens they read the last evaluation, one in five iterations.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.atlas.studies import Study

from groupwise.certificates.effect_comparisons import EffectComparison
from groupwise.certificates.effect_plans import FIRST_SEED, path_of, sizes_of
from groupwise.methods import ExpectedEffect

FILE = Path(__file__).with_name("earlier.json")
EVALUATION = ("evaluate.problems", "evaluate.every")


@dataclass(frozen=True, slots=True)
class Earlier:
    """An effect as it was stated and measured earlier, and the word for its result then."""

    study: Study
    comparison: EffectComparison
    word: str


def read_earlier() -> list[Earlier]:
    """All of them, in the order of the page then."""
    return [_earlier(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]


def _earlier(method: str, effect: dict, own: list[float], parent: list[float], lesson: str, word: str) -> Earlier:
    stated = ExpectedEffect(**{name: tuple(x) if isinstance(x, list) else x for name, x in effect.items()})
    return Earlier(Study(method, stated, lesson), EffectComparison(stated, tuple(own), tuple(parent)), word)


def pilot_of(study: Study, earlier: list[Earlier]) -> EffectComparison | None:
    """The earlier measurement of the same comparison, apart from rates and evaluation; None if it was another one."""
    found = (x.comparison for x in earlier if x.study.method == study.method and _same(x.study, study))
    return next(found, None)


def _same(a: Study, b: Study) -> bool:
    """Whether two studies state the same comparison, of runs that take the same steps."""
    return _statement(a) == _statement(b) and not steps_changed(a)


def _statement(study: Study) -> ExpectedEffect:
    effect = study.effect
    settings = tuple(line for line in effect.settings if path_of(line) not in EVALUATION)
    ours = {"kept": "", "acted": "", "acted_least": 0.0, "acted_in": "method", "is_rewarded": False, "is_papers": True}
    return replace(effect, settings=settings, kept_margin=0.0, plan="short", first_seed=FIRST_SEED, **ours)


def steps_changed(study: Study) -> bool:
    """Whether a side took two steps per iteration earlier, and takes one now."""
    one_step = any("method.minibatches = 1" in sizes_of(method) for method in (study.method, study.effect.parent))
    return one_step and not any(path_of(line) == "method.minibatches" for line in study.effect.settings)
