"""docs/studies/index.md: one line for each study, with its verdict by the interval of its stated comparison.

The verdicts are those of `groupwise.evaluation.seed_verdicts`. A study with several settings has one for each of them.
A comparison of methods at one learning rate has none: it is *undecided* until each has its best rate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from groupwise.evaluation.interval import mean_p
from groupwise.evaluation.seed_verdicts import ALPHA, benjamini_hochberg, holm, seeds_for_power, verdict
from studies import (
    clip_fraction,
    clip_higher,
    dense_twin,
    difficulty,
    divisors,
    dynamic_sampling,
    engine_logprobs,
    gspo_regimes,
    ladder,
    length_bias,
    lengths,
    moe,
    pass_at_k,
    r1_zero,
    ratio_drift,
    smollm2,
    useful_length,
)
from studies.study import (
    LEAST_ACCURACY,
    LEAST_PASSES,
    LEAST_TOKENS,
    Estimate,
    Exact,
    Measured,
    Results,
    Study,
    judged_estimates,
    table,
)
from studies.tuning import at_best_rates

Estimates = list[Estimate]
DAPO, DR_GRPO, GSPO, R1 = "2503.14476", "2503.20783", "2507.18071", "2501.12948"
PASS_AT_K = "2504.13837"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a study repeats: the effect, its paper, and the estimates of the stated comparison, one for each setting.

    `least` is the smallest difference that counts, 0 if each does. `sign` is 1 if the paper claims estimates above
    `border`, -1 if it claims them below. The first estimate is the number of the table, with `unit`. An effect is about
    what a policy learns, about a mechanism, or computed exactly. `shared_rate`: it compares methods at rates that they
    share.
    """

    study: Study
    effect: str
    paper: str
    estimates: Callable[[Mapping[str, Measured], Exact], Estimates]
    unit: str
    least: float = 0.0
    kind: Literal["learning", "mechanism", "exact"] = "learning"
    sign: int = 1
    border: float = 0.0
    shared_rate: bool = False

    def claimed(self, measured: Mapping[str, Measured], exact: Exact) -> list[tuple[float, ...]]:
        """The values of each setting with the sign of the claim: above 0 is what the paper says."""
        return [tuple(self.sign * (x - self.border) for x in e.values) for e in self.estimates(measured, exact)]

    def verdicts(self, measured: Mapping[str, Measured], exact: Exact) -> list[str]:
        """A verdict for each setting."""
        return [verdict(values, self.least) for values in self.claimed(measured, exact)]


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


def _length_bias(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    wrong, right = length_bias.ends_exact(exact)["grpo"]
    return [wrong.minus(right), *(lengths.gaps(m[part])["grpo"] for part in ("long", "coin"))]


def _difficulty(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    (levels,) = m.values()
    gains = {level: difficulty.gain(levels, level) for level in difficulty.LEVELS}
    return [gains[level].minus(gains["middle"]) for level in ("hard", "easy")]


def _dynamic_sampling(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    runs = dynamic_sampling.accuracies(m["calculator"], equal_tokens=False)
    return [runs["on"].minus(runs["off"])]


def _clip_fraction(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    (grpo, gspo), _ = clip_fraction.shares(m["rates"], "1e-4")
    return [gspo.minus(grpo)]


def _ladder(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    naive, *_, whole = ladder.RUNGS
    return [ladder.after(m["rungs"], whole).minus(ladder.after(m["rungs"], naive))]


def _r1_zero(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    runs, last = m["budget"], r1_zero.LAST
    return [runs.mean("full", metric, last - 4, last).minus(runs.mean("full", metric, 1, 1))
            for metric in (r1_zero.RIGHT, r1_zero.LENGTH)]  # fmt: skip


def _moe(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    gspo, grpo = (moe.rung(m["rates"], key, moe.RATES, moe.LAST) for key in ("gspo", "grpo"))
    return [gspo.minus(grpo)]


def _engine_logprobs(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    pairs = [(m[part], x) for part, (_, engines) in engine_logprobs.PARTS.items() for x in engines]
    change = engine_logprobs.change
    return [change(runs, "gspo", x).minus(change(runs, "grpo", x)) for runs, x in pairs]


EFFECTS = (
    Effect(length_bias.STUDY, "GRPO makes wrong answers longer than right ones", DR_GRPO, _length_bias, "tokens",
           LEAST_TOKENS),
    Effect(useful_length.STUDY, "GRPO makes wrong answers longer than Dr. GRPO does, where length has a use", DR_GRPO,
           lambda m, _: [useful_length.longer(m["searches"], key) for key in ("grpo", "no_std")], "tokens",
           LEAST_TOKENS, shared_rate=True),
    Effect(difficulty.STUDY, "the std favours the hardest and the easiest questions", DR_GRPO, _difficulty,
           "accuracy of hard sums minus that of middle ones", LEAST_ACCURACY, shared_rate=True),
    Effect(divisors.STUDY, "a mean of microbatches' means has another gradient than the token mean", DAPO,
           lambda _, exact: [Estimate(tuple(exact["microbatches: 1 group"]["distance"]))],
           "of the gradient's norm", 0.05, "exact"),
    Effect(dynamic_sampling.STUDY, "dynamic sampling reaches more in equal iterations", DAPO, _dynamic_sampling,
           "accuracy", LEAST_ACCURACY, shared_rate=True),
    Effect(clip_higher.STUDY, "a higher upper bound keeps entropy and pass@64", DAPO,
           lambda m, _: [clip_higher.gains(m["bounds"], "0.28")[key] for key in clip_higher.CLAIMED.values()],
           "nats of entropy", LEAST_PASSES, shared_rate=True),
    Effect(ladder.STUDY, "DAPO's five techniques together end above GRPO", DAPO, _ladder, "accuracy", LEAST_ACCURACY,
           shared_rate=True),
    Effect(clip_fraction.STUDY, "GSPO clips far more tokens than GRPO", GSPO, _clip_fraction, "of the tokens",
           clip_fraction.LEAST_CLIPPED, "mechanism"),
    Effect(gspo_regimes.STUDY, "GSPO learns faster than GRPO", GSPO,
           lambda m, _: [gspo_regimes.gain(m["regimes"], name) for name in gspo_regimes.SIDES], "right answers",
           LEAST_ACCURACY, shared_rate=True),
    Effect(ratio_drift.STUDY, "the mean over an answer averages the noise of its tokens' ratios", GSPO,
           lambda m, _: [ratio_drift.relative(m["dense"], key, ratio_drift.MEANS) for key in ratio_drift.DENSE],
           "times the spread of tokens", 0.1, "mechanism", -1, 1.0),
    Effect(moe.STUDY, "in mixtures of experts GSPO is stable at larger learning rates", GSPO, _moe, "rungs of three",
           0.5),
    Effect(dense_twin.STUDY, "GSPO's gain is larger in a mixture than in a dense model", GSPO,
           lambda m, _: [dense_twin.gain(m["mixture"]).minus(dense_twin.gain(m["twin"]))], "right answers",
           LEAST_ACCURACY, shared_rate=True),
    Effect(engine_logprobs.STUDY, "GSPO tolerates old log-probs of the engine better than GRPO", GSPO,
           _engine_logprobs, "right answers", LEAST_ACCURACY, shared_rate=True),
    Effect(r1_zero.STUDY, "accuracy and length rise together", R1, _r1_zero, "right answers", LEAST_ACCURACY),
    Effect(pass_at_k.STUDY, "training lowers pass@64 of tiny models", PASS_AT_K,
           lambda m, _: [pass_at_k.gains(own)[64] for own in m.values()], "pass@64", LEAST_PASSES, sign=-1),
    Effect(smollm2.STUDY, "training lowers pass@64 of a pretrained model", PASS_AT_K,
           lambda m, _: [smollm2.gains(m["rl"], smollm2.LAST)[64]], "pass@64", LEAST_PASSES, sign=-1),
)  # fmt: skip
"""The effect of each study, by paper."""
HEAD = ("effect", "result", "one number", "seeds, for 0.8", "kept by", "kind", "study")


@dataclass(frozen=True, slots=True)
class EffectResult:
    """What stored results say of an effect: a difference and a verdict for each setting, with the sign of the claim.

    `is_open`: its methods have run at one rate only, so the effect is undecided.
    """

    estimates: Estimates
    claimed: list[tuple[float, ...]]
    verdicts: list[str]
    is_open: bool


def effect_result(effect: Effect, results: Results, exact: Mapping[str, Exact]) -> EffectResult:
    """The result of an effect: at the best rates where those runs are there."""
    tuned = at_best_rates(effect.study, results)
    data = effect.study.measured(results) | tuned, exact.get(effect.study.name, {})
    is_open = effect.shared_rate and not tuned
    return EffectResult(effect.estimates(*data), effect.claimed(*data), effect.verdicts(*data), is_open)


def index_blocks(results: Results, exact: Mapping[str, Exact]) -> dict[str, str]:
    """The tables of effects and of corrections of the page, from the stored results."""
    judged = judged_by_study(results, exact)
    kept, rows = corrected(judged), list[tuple[object, ...]]()
    for effect in EFFECTS:
        found = effect_result(effect, results, exact)
        text = detail(found.verdicts)
        first = found.estimates[0]
        seeds = ", ".join([str(len(first.values)), *needed(first, effect.least)])
        link = f"[page]({effect.study.page.removeprefix('docs/studies/')})"
        text = f"undecided; at one rate: {text}" if found.is_open else text
        number, survives = f"{first.brief} {effect.unit}", kept_by(found.claimed, kept)
        rows.append((effect.effect, text, number, seeds, survives, effect.kind, link))
    return {"effects": table(HEAD, rows), "corrections": corrections(judged, kept)}


def needed(estimate: Estimate, least: float) -> list[str]:
    """The seeds that find the smallest difference that counts in 80 % of the cases; none if each difference counts."""
    return [str(seeds_for_power(stdev(estimate.values), least, ALPHA))] if least else []


Judged = Mapping[str, list[tuple[float, ...]]]
Kept = Mapping[tuple[float, ...], tuple[bool, bool]]


def judged_by_study(results: Results, exact: Mapping[str, Exact]) -> Judged:
    """The values of each verdict on the pages, by study, each once; also those of this page."""
    judged = {}
    for effect in EFFECTS:
        measured, own = effect.study.measured(results), exact.get(effect.study.name, {})
        with judged_estimates() as estimates:
            effect.study.blocks(measured, own)
        values = [x.values for x in estimates if not any(map(_is_nan, x.values))]
        judged[effect.study.name] = list(dict.fromkeys([*values, *effect.claimed(measured, own)]))
    return judged


def _is_nan(x: float) -> bool:
    return x != x


def corrected(judged: Judged) -> Kept:
    """Whether Holm and whether Benjamini-Hochberg keep each verdict, of those of all pages together."""
    values = list(dict.fromkeys(x for own in judged.values() for x in own))
    ps = [mean_p(x) for x in values]
    return dict(zip(values, zip(holm(ps), benjamini_hochberg(ps), strict=True), strict=True))


def kept_by(claimed: Iterable[tuple[float, ...]], kept: Kept) -> str:
    """How many settings of an effect survive each correction."""
    pairs = [kept.get(values, (False, False)) for values in claimed]
    return ", ".join(f"{name} {sum(x)} of {len(pairs)}" for name, x in zip(("Holm", "BH"), zip(*pairs), strict=True))


def corrections(judged: Judged, kept: Kept) -> str:
    """The number of verdicts on each page, and how many of them two corrections over all pages keep."""
    rows = []
    for name, own in judged.items():
        excluded = sum(mean_p(x) < ALPHA for x in own)
        rows.append((name, len(own), excluded, *(sum(kept[x][i] for x in own) for i in (0, 1))))
    total = ("all", *(sum(row[i] for row in rows) for i in range(1, 5)))
    return table(("study", "verdicts", "exclude 0", "kept by Holm", "by Benjamini-Hochberg"), [*rows, total])


def other_seeds(
    names: Sequence[str], results: Results, others: Results, seeds: Sequence[int], exact: Mapping[str, Exact]
) -> str:
    """A table of the stated comparisons of some studies: stored seeds, other seeds, and both verdicts."""
    rows = []
    for effect in (effect for effect in EFFECTS if effect.study.name in names):
        own, sides = exact.get(effect.study.name, {}), []
        for measured in (effect.study.measured(results), effect.study.measured(others, seeds)):
            complete = measured.keys() == effect.study.parts.keys()
            estimates = effect.estimates(measured, own) if complete else []
            verdicts = effect.verdicts(measured, own) if complete else []
            sides.append([f"{x.brief}, {word}" for x, word in zip(estimates, verdicts, strict=True)])
        rows += [(effect.effect, *pair) for pair in zip(*sides, strict=False)]
    return table(("effect", "stored seeds", f"seeds {seeds[0]} to {seeds[-1]}"), rows)
