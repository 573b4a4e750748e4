"""The claims of papers with their verdicts: those of the studies, one for each setting, and of docs/studies/claims.md.

`python -m tools.start_page` writes them into the start page, and their picture.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groupwise.core import counted
from groupwise.evaluation.seed_verdicts import NOT_ENOUGH_RUNS
from studies import claim as stated_claim
from studies.claims import CLAIMS, PAGE
from studies.claims import estimate as estimate_of
from studies.effects import DAPO, EFFECTS, GSPO, Effect
from studies.forest import VERDICTS, Row, forest
from studies.index import Kept, corrected, effect_result, judged_by_page, unsigned
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
    "clip_higher": (("a higher bound keeps entropy", "nats"), ("a higher bound keeps pass@64", "")),
    "ladder": (("DAPO's techniques: more in equal iterations", "right"),),
    "clip_fraction": (("GSPO clips far more tokens", "of tokens"),),
    "gspo_regimes": tuple(
        (f"GSPO ends higher: {regime}", "right")
        for regime in ("base", "16 minibatches", "4 epochs", "answers of 36 tokens")
    ),
    "ratio_drift": (
        ("means of answers average noise: GRPO", "of variance common"),
        ("means of answers average noise: GSPO", "of variance common"),
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


OF_CLAIMS = {
    "noisy-best": ("GSPO ends higher: noisy log-probs", "right", GSPO),
    "long-noisy": ("GSPO ends higher: noisy, 300 tokens", "right", GSPO),
    "long-noisy-wide": ("GSPO ends higher: noisy, 300 tokens, wide", "right", GSPO),
    "tailed-noisy-open": ("GSPO ends higher: noisy, 250 tokens, learnable", "right", GSPO),
    **{f"engine-{n}-bits": (f"engine's log-probs suffice: {n} bits", "right", GSPO) for n in (8, 6, 5, 4)},
    "admission": ("a mixture's ratios spread more", "log-ratio", GSPO),
    "sparse-mixture": ("GSPO ends higher: mixture, 2 experts", "right", GSPO),
    "dapo-clip-higher": ("clip-higher helps DAPO: hinted_sums", "right", DAPO),
    "dapo-overlong": ("overlong punishment helps DAPO: wordy_sums", "right", DAPO),
    "dapo-token-mean": ("token mean helps DAPO: wordy_sums", "right", DAPO),
}
"""The label of each claim of docs/studies/claims.md, the unit of its difference, and its paper."""
MECHANISMS = ("admission",)
"""The claims of that page that are about a mechanism."""
EQUAL = tuple(name for name in OF_CLAIMS if name.startswith("engine-"))
"""The claims of that page that there is no difference: *absent* is what the paper says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim in one setting: its page and paper, the difference over seeds, and the verdict.

    The paper claims a difference above `border`, or with a `sign` of -1 below; there is none before a claim's first
    look. `because` is the reason of *undecided*. `kept`: whether Holm's correction over all pages keeps the verdict,
    and Benjamini and Hochberg's. `is_open`: its methods have run at one learning rate only.
    """

    text: str
    unit: str
    page: str
    paper: str
    kind: str
    estimate: Estimate | None
    verdict: str
    because: str = ""
    sign: int = 1
    border: float = 0.0
    kept: tuple[bool, bool] = (False, False)
    is_open: bool = False
    is_stale: bool = False
    is_equality: bool = False

    @property
    def lacks_runs(self) -> bool:
        """Whether it is undecided since further runs are to come."""
        return self.is_open or self.because == NOT_ENOUGH_RUNS

    @property
    def notes(self) -> list[str]:
        """What a reader must know of its runs."""
        why = ["one rate"] if self.is_open else [self.because] * bool(self.because)
        confirms = ["as the paper claims"] * (self.is_equality and self.verdict == "absent")
        return [*why, *confirms, *["older code"] * self.is_stale]

    @property
    def number(self) -> str:
        """The difference with its interval and unit."""
        return "no run yet" if self.estimate is None else f"{self.estimate.brief} {self.unit}".strip()

    @property
    def row(self) -> Row:
        """The claim in the plot, on whose right side the paper's claim lies, in smallest differences that count."""
        marks = "†" * self.is_open + "*" * self.is_stale
        if self.estimate is None:
            return Row(self.text, None, self.verdict, self.number, marks)
        ends = (*self.estimate.interval, self.estimate.mean)
        low, middle, high = sorted(self.sign * (x - self.border) / self.estimate.least for x in ends)
        return Row(self.text, (low, middle, high), self.verdict, self.number, marks)


def claims(results: Results, exact: Mapping[str, Exact], of_claims: Results) -> list[Claim]:
    """The claims of all studies in all settings, and those of the page of claims, sorted by verdict."""
    kept = corrected(judged_by_page(results, exact, of_claims))
    every = [claim for effect in EFFECTS for claim in _settings(effect, results, exact, kept)]
    every += [_stated(CLAIMS[name], of_claims, kept) for name in OF_CLAIMS]
    order = list(VERDICTS)
    return sorted(every, key=lambda claim: order.index(claim.verdict))


def _settings(effect: Effect, results: Results, exact: Mapping[str, Exact], kept: Kept) -> list[Claim]:
    """The claims of a study, one for each setting."""
    found = effect_result(effect, results, exact)
    study_is_stale = any(part.stale for part in effect.study.measured(results).values())
    settings = zip(SETTINGS[effect.study.name], found.estimates, found.claimed, found.verdicts, strict=True)
    return [
        Claim(
            text=text,
            unit=unit,
            page=effect.study.page,
            paper=effect.paper,
            kind="exact" if text in WITHOUT_RUNS else effect.kind,
            estimate=x,
            verdict="undecided" if found.is_open else word,
            because="" if found.is_open else claimed.because,
            sign=effect.sign,
            border=effect.border,
            kept=kept.get(unsigned(claimed), (False, False)),
            is_open=found.is_open,
            is_stale=study_is_stale if x.stale is None else x.stale,
        )
        for (text, unit), x, claimed, word in settings
    ]


def _stated(claim: stated_claim.Claim, results: Results, kept: Kept) -> Claim:
    """A claim of the page of claims, with the verdict that it has there."""
    text, unit, paper = OF_CLAIMS[claim.name]
    found, estimate = claim.judgement(results), estimate_of(claim, results)
    return Claim(
        text=text,
        unit=unit,
        page=PAGE.as_posix(),
        paper=paper,
        kind="mechanism" if claim.name in MECHANISMS else "learning",
        estimate=estimate,
        verdict=found.word,
        because="not admitted" if is_shut_out(claim, results) else found.because,
        kept=kept.get(unsigned(estimate), (False, False)) if estimate else (False, False),
        is_equality=claim.name in EQUAL,
    )


def is_shut_out(claim: stated_claim.Claim, results: Results) -> bool:
    """Whether the claim that had to admit this one is decided, and not shown."""
    admission = claim.admitted_by
    return admission is not None and not claim.is_admitted(results) and admission.judgement(results).is_final


def verdicts(every: Sequence[Claim]) -> str:
    """The heading and the table of the start page, and what remains after corrections."""
    rows = [(claim.verdict, _link(claim), claim.number, _paper(claim)) for claim in every]
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
    unmade = sum(claim.lacks_runs for claim in learning)
    why = f"{unmade} of the undecided {'has' if unmade == 1 else 'have'} not enough runs."
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
    return ", ".join((f"[{claim.text}]({claim.page.removeprefix('docs/studies/')})", *claim.notes))


def _paper(claim: Claim) -> str:
    return f"[{claim.paper}](https://arxiv.org/abs/{claim.paper})"
