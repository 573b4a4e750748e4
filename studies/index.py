"""docs/studies/index.md: one line for each study, with the verdict of its stated comparison (studies/effects.py).

A comparison of methods at one learning rate has not enough runs: it is *undecided* until each has its best rate.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from groupwise.evaluation.seed_verdicts import ALPHA, NOT_ENOUGH_RUNS, benjamini_hochberg, holm
from groupwise.evaluation.seeds_to_decide import seeds_in_words, seeds_to_decide
from studies.claims import CLAIMS
from studies.claims import estimate as estimate_of
from studies.effects import EFFECTS, Effect, Estimates
from studies.study import Estimate, Exact, Results, judged_estimates, table
from studies.tuning import at_best_rates, best_measured

HEAD = ("effect", "result", "one number", "seeds, to decide", "kept by", "kind", "study")


def summary(verdicts: list[str]) -> str:
    """The verdict of all settings, of most of them, or `mixed`.

    >>> summary(["shown"]), summary(["opposite", "opposite", "absent"]), summary(["shown", "opposite"])
    ('shown', 'opposite', 'mixed')
    """
    word, most = Counter(verdicts).most_common(1)[0]
    return word if 2 * most > len(verdicts) else "mixed"


def detail(verdicts: list[str]) -> str:
    """The summary, with the settings it does not hold for.

    >>> detail(["opposite", "opposite", "absent"]), detail(["shown", "undecided"])
    ('opposite in 2 of 3 settings', 'mixed: shown in 1, undecided in 1 of 2 settings')
    """
    word, counts, of = summary(verdicts), Counter(verdicts), len(verdicts)
    if word == "mixed":
        return f"mixed: {', '.join(f'{name} in {n}' for name, n in counts.items())} of {of} settings"
    return word if len(counts) == 1 else f"{word} in {counts[word]} of {of} settings"


@dataclass(frozen=True, slots=True)
class EffectResult:
    """What stored results say of an effect: a difference and a verdict for each setting, with the sign of the claim.

    `is_open`: its methods have run at one rate only, so the effect is undecided.
    """

    estimates: Estimates
    claimed: Estimates
    verdicts: list[str]
    is_open: bool

    @property
    def text(self) -> str:
        """The verdicts in a cell, with the reasons of those that are undecided."""
        if self.is_open:
            return f"undecided: {NOT_ENOUGH_RUNS}; at one rate: {detail(self.verdicts)}"
        reasons, text = Counter(x.because for x in self.claimed if x.because), detail(self.verdicts)
        if [len(self.claimed)] == [*reasons.values()]:
            return f"{text}: {next(iter(reasons))}"
        some = ", ".join(f"{why} in {n}" for why, n in reasons.items())
        return f"{text} ({some})" if some else text


def effect_result(effect: Effect, results: Results, exact: Mapping[str, Exact]) -> EffectResult:
    """The result of an effect: at the best rates where those runs are there."""
    tuned = at_best_rates(effect.study, results)
    data = best_measured(effect.study, results), exact.get(effect.study.name, {})
    is_open = bool(effect.study.tuned) and not tuned
    return EffectResult(effect.estimates(*data), effect.claimed(*data), effect.verdicts(*data), is_open)


def index_blocks(results: Results, exact: Mapping[str, Exact], of_claims: Results) -> dict[str, str]:
    """The tables of effects and of corrections of the page, from the stored results of studies and of claims."""
    judged = judged_by_page(results, exact, of_claims)
    kept, rows = corrected(judged), list[tuple[object, ...]]()
    for effect in EFFECTS:
        found = effect_result(effect, results, exact)
        first = found.estimates[0]
        seeds = ", ".join([str(len(first.values)), *needed(found.claimed[0], found.is_open)])
        link = f"[page]({effect.study.page.removeprefix('docs/studies/')})"
        number, survives = f"{first.brief} {effect.unit}", kept_by(found.claimed, kept)
        rows.append((effect.effect, found.text, number, seeds, survives, effect.kind, link))
    return {"effects": table(HEAD, rows), "corrections": corrections(judged, kept)}


def needed(estimate: Estimate, is_open: bool) -> list[str]:
    """The seeds that would decide an undecided estimate, by Student's interval of a look; none if more would not.

    Runs at one rate are the pilot of those at the best ones.
    """
    if not is_open and (estimate.word != "undecided" or estimate.obstacle):
        return []
    made = 0 if is_open else len(estimate.values)
    return [seeds_in_words(seeds_to_decide(estimate.values, estimate.least), made)]


Judged = Mapping[str, Estimates]
Kept = Mapping[tuple[float, ...], tuple[bool, bool]]


def judged_by_page(results: Results, exact: Mapping[str, Exact], of_claims: Results) -> Judged:
    """The estimate of each verdict on the pages, by study, each once up to its sign; also those of the page of claims.

    Those at the best rates, where they are there, replace those at shared rates.
    """
    judged = {}
    for effect in EFFECTS:
        study = effect.study
        measured, own = best_measured(study, results), exact.get(study.name, {})
        with judged_estimates() as estimates:
            study.blocks(measured, own)
        every = [*(x for x in estimates if not any(map(_is_nan, x.values))), *effect.claimed(measured, own)]
        judged[study.name] = list({unsigned(x): x for x in every}.values())
    found = (estimate_of(claim, of_claims) for claim in CLAIMS.values() if not claim.has_one_rate)
    return judged | {"claims": [x for x in found if x is not None]}


def unsigned(x: Estimate) -> tuple[float, ...]:
    """The values of an estimate with the sign that makes them larger: a verdict and its mirror are one.

    >>> unsigned(Estimate((-1.0, 2.0))) == unsigned(Estimate((1.0, -2.0)))
    True
    """
    return max(x.values, tuple(-value for value in x.values))


def _is_nan(x: float) -> bool:
    return x != x


def corrected(judged: Judged) -> Kept:
    """Whether Holm and whether Benjamini-Hochberg keep each verdict, of those of all pages together; by `unsigned`."""
    ps = {unsigned(x): x.p for own in judged.values() for x in own}
    values = list(ps.values())
    return dict(zip(ps, zip(holm(values), benjamini_hochberg(values), strict=True), strict=True))


def kept_by(claimed: Iterable[Estimate], kept: Kept) -> str:
    """How many settings of an effect survive each correction."""
    pairs = [kept.get(unsigned(x), (False, False)) for x in claimed]
    return ", ".join(f"{name} {sum(x)} of {len(pairs)}" for name, x in zip(("Holm", "BH"), zip(*pairs), strict=True))


def corrections(judged: Judged, kept: Kept) -> str:
    """The number of verdicts on each page, and how many of them two corrections over all pages keep.

    A verdict of two pages counts once in the last row.
    """
    each_once = {unsigned(x): x for own in judged.values() for x in own}.values()
    rows = [
        (name, len(own), sum(x.p < ALPHA for x in own), *(sum(kept[unsigned(x)][i] for x in own) for i in (0, 1)))
        for name, own in [*judged.items(), ("all, each once", each_once)]
    ]
    return table(("study", "verdicts", "exclude 0", "kept by Holm", "by Benjamini-Hochberg"), rows)


def other_seeds(
    names: Sequence[str], results: Results, others: Results, seeds: Sequence[int], exact: Mapping[str, Exact]
) -> str:
    """A table of the stated comparisons of some studies: stored seeds, other seeds, and both verdicts."""
    rows = []
    for effect in (effect for effect in EFFECTS if effect.study.name in names):
        own, sides = exact.get(effect.study.name, {}), []
        for measured in (effect.study.measured(results), effect.study.measured(others, seeds)):
            complete = measured.keys() >= effect.study.parts.keys() - effect.study.seeds.keys()
            estimates = effect.estimates(measured, own) if complete else []
            verdicts = effect.verdicts(measured, own) if complete else []
            sides.append([f"{x.brief}, {word}" for x, word in zip(estimates, verdicts, strict=True)])
        rows += [(effect.effect, *pair) for pair in zip(*sides, strict=False)]
    return table(("effect", "stored seeds", f"seeds {seeds[0]} to {seeds[-1]}"), rows)
