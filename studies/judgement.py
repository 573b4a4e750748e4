"""The verdict of differences that are looked at after 5, 10 and 20 seeds, with the reason of *undecided*."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groupwise.certificates.effect_plans import FIRST_SEED
from groupwise.evaluation.seed_verdicts import (
    FIRST_MODELS_DIFFER,
    LOOK_LEVEL,
    LOOKS,
    NOT_ENOUGH_RUNS,
    Verdict,
    first_models_differ,
    verdict,
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of a claim after so many `seeds`: a verdict, and for *undecided* the reason, if there is one."""

    word: Verdict
    because: str
    seeds: int

    @property
    def is_final(self) -> bool:
        """Whether no further run is made."""
        return self.because != NOT_ENOUGH_RUNS

    def __str__(self) -> str:
        return f"*{self.word}*" + (f": {self.because}" if self.because else "")


def judged(
    differences: Sequence[float], least: float, first_models: int = 1, obstacle: Callable[[int], str] = lambda look: ""
) -> Judgement:
    """The verdict of the first look that decides or has an obstacle, *undecided* after the last one or before the next.

    The seeds are those from `FIRST_SEED` on, and start from the first models in turn.

    >>> [str(judged(x, 0.03)) for x in ([0.1, 0.11, 0.09, 0.1, 0.1], [0.1, -0.1], [0.1, -0.1] * 10)]
    ['*shown*', '*undecided*: not enough runs', '*undecided*']
    """
    for look in LOOKS:
        if len(differences) < look:
            return Judgement("undecided", NOT_ENOUGH_RUNS, len(differences))
        if because := obstacle(look):
            return Judgement("undecided", because, look)
        word = verdict(differences[:look], least, LOOK_LEVEL, _bases(look, first_models))
        if word != "undecided":
            return Judgement(word, "", look)
    seen, bases = differences[: LOOKS[-1]], _bases(LOOKS[-1], first_models)
    return Judgement("undecided", FIRST_MODELS_DIFFER * first_models_differ(seen, least, LOOK_LEVEL, bases), len(seen))


def _bases(look: int, first_models: int) -> list[int]:
    """The first model of each seed of a look."""
    return [seed % first_models for seed in range(FIRST_SEED, FIRST_SEED + look)]
