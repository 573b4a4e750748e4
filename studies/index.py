"""docs/studies/index.md: one line for each study, with its verdict by the interval of its stated comparison.

An effect is *confirmed* if the interval lies on the side that the paper claims, *opposite* if it lies on the other
side, and *not seen* if it contains the border. A study with several settings has a verdict for each of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
from studies.study import Estimate, Exact, Measured, Study, table

Estimates = list[Estimate]
DAPO, DR_GRPO, GSPO, R1 = "2503.14476", "2503.20783", "2507.18071", "2501.12948"
PASS_AT_K = "2504.13837"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a study repeats: the effect, its paper, and the estimates of the stated comparison, one for each setting.

    `sign` is 1 if the paper claims estimates above `border`, -1 if it claims them below. The first estimate is the
    number of the table, with `unit`.
    """

    study: Study
    effect: str
    paper: str
    estimates: Callable[[Mapping[str, Measured], Exact], Estimates]
    unit: str
    sign: int = 1
    border: float = 0.0

    def verdicts(self, measured: Mapping[str, Measured], exact: Exact) -> list[str]:
        """A verdict for each setting."""
        words = ("confirmed", "opposite")[:: self.sign]
        moved = (Estimate(tuple(x - self.border for x in e.values)) for e in self.estimates(measured, exact))
        return [x.result(*words, neither="not seen").strip("*") for x in moved]


def summary(verdicts: list[str]) -> str:
    """The verdict of all settings, of most of them, or `mixed`.

    >>> summary(["confirmed"]), summary(["opposite", "opposite", "not seen"]), summary(["confirmed", "opposite"])
    ('confirmed', 'opposite', 'mixed')
    """
    word, most = Counter(verdicts).most_common(1)[0]
    return word if 2 * most > len(verdicts) else "mixed"


def detail(verdicts: list[str]) -> str:
    """The summary, with the settings it does not hold for.

    >>> detail(["opposite", "opposite", "not seen"]), detail(["confirmed", "not seen"])
    ('opposite in 2 of 3 settings', 'mixed: confirmed in 1, not seen in 1 of 2 settings')
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
    Effect(length_bias.STUDY, "GRPO makes wrong answers longer than right ones", DR_GRPO, _length_bias, "tokens"),
    Effect(useful_length.STUDY, "GRPO makes wrong answers longer than Dr. GRPO does, where length has a use", DR_GRPO,
           lambda m, _: [useful_length.longer(m["searches"], key) for key in ("grpo", "no_std")], "tokens"),
    Effect(difficulty.STUDY, "the std favours the hardest and the easiest questions", DR_GRPO, _difficulty,
           "accuracy of hard sums minus that of middle ones"),
    Effect(divisors.STUDY, "a mean of microbatches' means has another gradient than the token mean", DAPO,
           lambda _, exact: [Estimate(tuple(exact["microbatches: 1 group"]["distance"]))],
           "of the gradient's norm"),
    Effect(dynamic_sampling.STUDY, "dynamic sampling reaches more in equal iterations", DAPO, _dynamic_sampling,
           "accuracy"),
    Effect(clip_higher.STUDY, "a higher upper bound keeps entropy and pass@64", DAPO,
           lambda m, _: [clip_higher.gains(m["bounds"], "0.28")[key] for key in clip_higher.CLAIMED.values()],
           "nats of entropy"),
    Effect(ladder.STUDY, "DAPO's five techniques together end above GRPO", DAPO, _ladder, "accuracy"),
    Effect(clip_fraction.STUDY, "GSPO clips far more tokens than GRPO", GSPO, _clip_fraction, "of the tokens"),
    Effect(gspo_regimes.STUDY, "GSPO learns faster than GRPO", GSPO,
           lambda m, _: [gspo_regimes.gain(m["regimes"], name) for name in gspo_regimes.SIDES], "right answers"),
    Effect(ratio_drift.STUDY, "the mean over an answer averages the noise of its tokens' ratios", GSPO,
           lambda m, _: [ratio_drift.relative(m["dense"], key, ratio_drift.MEANS) for key in ratio_drift.DENSE],
           "times the spread of tokens", -1, 1.0),
    Effect(moe.STUDY, "in mixtures of experts GSPO is stable at larger learning rates", GSPO, _moe, "rungs of three"),
    Effect(dense_twin.STUDY, "GSPO's gain is larger in a mixture than in a dense model", GSPO,
           lambda m, _: [dense_twin.gain(m["mixture"]).minus(dense_twin.gain(m["twin"]))], "right answers"),
    Effect(engine_logprobs.STUDY, "GSPO tolerates old log-probs of the engine better than GRPO", GSPO,
           _engine_logprobs, "right answers"),
    Effect(r1_zero.STUDY, "accuracy and length rise together", R1, _r1_zero, "right answers"),
    Effect(pass_at_k.STUDY, "training lowers pass@64 of tiny models", PASS_AT_K,
           lambda m, _: [pass_at_k.gains(own)[64] for own in m.values()], "pass@64", -1),
    Effect(smollm2.STUDY, "training lowers pass@64 of a pretrained model", PASS_AT_K,
           lambda m, _: [smollm2.gains(m["rl"], smollm2.LAST)[64]], "pass@64", -1),
)  # fmt: skip
"""The effect of each study, by paper."""


def index_blocks(results: Any, exact: Mapping[str, Exact]) -> dict[str, str]:
    """The heading and the table of the page, from the stored results."""
    rows, words = [], list[str]()
    for effect in EFFECTS:
        measured, own = effect.study.measured(results), exact.get(effect.study.name, {})
        verdicts = effect.verdicts(measured, own)
        words.append(summary(verdicts))
        link = effect.study.page.removeprefix("docs/studies/")
        number = f"{effect.estimates(measured, own)[0].brief} {effect.unit}"
        paper = f"[{effect.paper}](https://arxiv.org/abs/{effect.paper})"
        rows.append((effect.effect, paper, detail(verdicts), number, f"[page]({link})"))
    return {"counts": heading(words), "effects": table(("effect", "paper", "here", "one number", "study"), rows)}


def heading(words: Iterable[str]) -> str:
    """The counts of the verdicts.

    >>> heading(["confirmed", "opposite", "confirmed"])
    '## 3 effects repeated: 2 confirmed, 0 not seen, 1 opposite, 0 mixed'
    """
    counts = Counter(words)
    each = (f"{counts[word]} {word}" for word in ("confirmed", "not seen", "opposite", "mixed"))
    return f"## {counts.total()} effects repeated: {', '.join(each)}"
