"""The claims that the studies repeat, one for each setting, with their verdicts: the start page and its picture.

`python -m tools.start_page` writes both.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groupwise.core import counted
from studies.effects import EFFECTS, Effect
from studies.forest import VERDICTS, Row, forest
from studies.index import corrected, effect_result, judged_by_study
from studies.study import Estimate, Exact, Results, table

SETTINGS: Mapping[str, Sequence[tuple[str, str]]] = {
    "length_bias": (
        ("GRPO lengthens wrong answers: two numbers", "tokens"),
        ("GRPO lengthens wrong answers: small rate", "tokens"),
        ("GRPO lengthens wrong answers: large rate", "tokens"),
    ),
    "useful_length": (
        ("wrong answers outgrow Dr. GRPO's: GRPO", "tokens"),
        ("wrong answers outgrow Dr. GRPO's: no std", "tokens"),
    ),
    "difficulty": (("the std favours the hardest sums", "right"), ("the std favours the easiest sums", "right")),
    "divisors": (("means of microbatches turn the gradient", "of its norm"),),
    "dynamic_sampling": (("dynamic sampling: more in equal iterations", "right"),),
    "clip_higher": (("a higher upper bound keeps entropy", "nats"), ("a higher upper bound keeps pass@64", "")),
    "ladder": (("DAPO's techniques: more in equal iterations", "right"),),
    "clip_fraction": (("GSPO clips far more tokens", "of tokens"),),
    "gspo_regimes": tuple(
        (f"GSPO ends higher: {regime}", "right")
        for regime in (
            "base",
            "16 minibatches",
            "4 epochs",
            "longer answers",
            "bounds x 10",
            "16 minibatches, bounds x 10",
            "longer answers, bounds x 10",
            "16 minibatches, bounds x 100",
            "longer answers, bounds x 100",
        )
    ),
    "ratio_drift": (
        ("means of answers average noise: GRPO", "of tokens' spread"),
        ("means of answers average noise: GSPO", "of tokens' spread"),
    ),
    "moe": (("mixtures: GSPO is stable at larger rates", "rungs of 3"),),
    "dense_twin": (("GSPO gains more in a mixture", "right"),),
    "engine_logprobs": tuple(
        (f"GSPO tolerates engine's log-probs: {engine}", "right") for engine in ("bfloat16", "stale", "8-bit")
    ),
    "r1_zero": (("accuracy rises in training", "right"), ("length rises in training", "tokens")),
    "pass_at_k": (("training lowers pass@64: tiny_countdown", ""), ("training lowers pass@64: hinted_sums", "")),
    "smollm2": (("training lowers pass@64: SmolLM2", ""),),
}
"""The claim in each setting of a study, and the unit of its difference, in the order of the effect's estimates."""
WITHOUT_RUNS = ("GRPO lengthens wrong answers: two numbers",)
"""Claims that are computed exactly, in an effect whose other settings are runs."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim in one setting: the study's effect, the difference over seeds, and the verdict.

    `kept`: whether Holm's correction over all pages keeps the verdict, and Benjamini and Hochberg's. `is_open`: its
    methods have run at one learning rate only.
    """

    text: str
    unit: str
    effect: Effect
    estimate: Estimate
    verdict: str
    kept: tuple[bool, bool]
    is_open: bool
    is_stale: bool

    @property
    def kind(self) -> str:
        """About learning, about a mechanism, or exact."""
        return "exact" if self.text in WITHOUT_RUNS else self.effect.kind

    @property
    def notes(self) -> list[str]:
        """What a reader must know of its runs."""
        why = [self.estimate.obstacle] if self.estimate.obstacle and not self.is_open else []
        return ["one rate"] * self.is_open + why + ["older code"] * self.is_stale

    @property
    def number(self) -> str:
        """The difference with its interval and unit."""
        return f"{self.estimate.brief} {self.unit}".strip()

    @property
    def row(self) -> Row:
        """The claim in the plot, on whose right side the paper's claim lies."""
        effect, ends = self.effect, sorted((*self.estimate.interval, self.estimate.mean))
        low, middle, high = sorted(effect.sign * (x - effect.border) for x in ends)
        return Row(self.text, low, middle, high, self.verdict, self.number, "†" * self.is_open + "*" * self.is_stale)


def claims(results: Results, exact: Mapping[str, Exact]) -> list[Claim]:
    """The claims of all studies in all settings, sorted by verdict."""
    every, kept = list[Claim](), corrected(judged_by_study(results, exact))
    for effect in EFFECTS:
        found = effect_result(effect, results, exact)
        study_is_stale = any(part.stale for part in effect.study.measured(results).values())
        settings = zip(SETTINGS[effect.study.name], found.estimates, found.claimed, found.verdicts, strict=True)
        for setting, x, claimed, word in settings:
            verdict, survives = "undecided" if found.is_open else word, kept.get(claimed.values, (False, False))
            is_stale = study_is_stale if x.stale is None else x.stale
            every.append(Claim(*setting, effect, x, verdict, survives, found.is_open, is_stale))
    order = list(VERDICTS)
    return sorted(every, key=lambda claim: order.index(claim.verdict))


def verdicts(every: Sequence[Claim]) -> str:
    """The heading and the table of the start page, and what remains after corrections."""
    rows = [(claim.verdict, _link(claim), claim.number, _paper(claim.effect)) for claim in every]
    parts = heading(every), table(("verdict", "claim", "difference", "paper"), rows), survivors(about_learning(every))
    return "\n\n".join(filter(None, parts))


def about_learning(every: Sequence[Claim]) -> list[Claim]:
    """The claims about what a policy learns, which alone count in headlines."""
    return [claim for claim in every if claim.kind == "learning"]


def heading(every: Sequence[Claim]) -> str:
    """The counts of the verdicts. Only claims about learning are in the heading."""
    learning, besides = about_learning(every), []
    for kind in ("mechanism", "exact"):
        if own := [claim for claim in every if claim.kind == kind]:
            besides.append(f"{counted(len(own), f'{kind} claim')}: {_counts(own)}")
    text = f"## {counted(len(learning), 'claim')} about learning: {_counts(learning)}"
    unmade = sum(claim.is_open for claim in learning)
    what = "has not enough runs: its" if unmade == 1 else "have not enough runs: their"
    why = f"{unmade} of the undecided {what} methods have run at one learning rate."
    return "\n\n".join([text, *[why] * bool(unmade), *[f"Besides: {'; '.join(besides)}."] * bool(besides)])


def survivors(learning: Sequence[Claim]) -> str:
    """How many of the verdicts two corrections over all pages keep."""
    parts = []
    for word in ("shown", "opposite"):
        if kept := [claim.kept for claim in learning if claim.verdict == word]:
            holm, hochberg = (sum(x) for x in zip(*kept, strict=True))
            parts.append(f"of the {len(kept)} {word}, Holm's keeps {holm} and Benjamini and Hochberg's {hochberg}")
    return f"Corrections for all verdicts of these studies together: {'; '.join(parts)}." if parts else ""


def _counts(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def picture(every: Sequence[Claim]) -> str:
    """The forest plot of the claims about learning."""
    alt = f"{heading(every).splitlines()[0].removeprefix('## ')}; each with its difference and its interval"
    return forest([claim.row for claim in about_learning(every)], alt)


def _link(claim: Claim) -> str:
    page = claim.effect.study.page.removeprefix("docs/studies/")
    return ", ".join((f"[{claim.text}]({page})", *claim.notes))


def _paper(effect: Effect) -> str:
    return f"[{effect.paper}](https://arxiv.org/abs/{effect.paper})"
