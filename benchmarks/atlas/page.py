"""Write docs/atlas.md from the stored results."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from benchmarks.atlas.earlier import Earlier, pilot_of, read_earlier
from benchmarks.atlas.sides import changed, sizes
from benchmarks.atlas.studies import ABLATIONS, RESTATED, Study, studies

from groupwise import methods
from groupwise.certificates.effect_comparisons import EffectComparison, compare, is_loss
from groupwise.certificates.effect_plans import Results, Side, path_of, sides_of
from groupwise.certificates.studies import SIZES
from groupwise.data import ACCURACY_GREEDY
from groupwise.evaluation.seed_verdicts import NOT_ENOUGH_RUNS, benjamini_hochberg, by_first_model, holm
from groupwise.evaluation.seeds_to_decide import seeds_in_words
from groupwise.methods import ExpectedEffect, published, reference_of
from groupwise.methods.families import FAMILIES, method_family

INTRODUCTION = """\
# The atlas of effects

Does a method do here what its paper claims? Each published method states one effect in its file before the runs of its
row: a metric, a direction, the smallest difference that counts, and the method that it changes. An effect that is
stated again after runs has other seeds, and [stays in view](#stated-before). `make atlas` measures all on
[small tasks](small-tasks.md), and writes this page from the stored results. It skips finished runs, and runs a shared
parent once. One row: `python -m benchmarks.atlas gspo`.

These are small models and short runs. *Absent* means absent at this scale; it does not refute a paper.

- **Tuned on both sides.** Method and parent each choose a learning rate from the parent's times 1/3, 1, 3 and 10, and,
  for GSPO, Flow-GRPO, DPO, IPO and SimPO, among constants that their papers tune, by held-out accuracy on the seeds 90
  and 91. Ties go to the smaller rate, and a collapse counts ([the grids](#grids)). Methods beyond the first fifteen
  have two rates, 1 and 3. A grid whose best rate is at an edge grows by a rate a factor of 3 beyond it, up to twice. Of
  constants only the values of papers are tried, and GSPO's bounds times 10 and 100: the best may be the largest. A grid
  grows where its best choice is, so that another constant may still rise at the largest rate.
- **Fresh seeds.** Both are compared with the same seeds from 100 on, or from 200 on where an effect is stated again,
  which no choice has seen. The *difference* is the method minus its parent, within a seed. Tuning seeds start from one
  first model, the packaged one; fresh seeds of the first fifteen methods start from three in turn, and a rate that
  suits the packaged one need not suit the others.
- **Looks.** After 5, 10 and 20 seeds, and no further than the first that decides. Each decides at p < 0.0221, Pocock's
  bound: simulated, all three together err in 5.6 % of the comparisons without a difference. So intervals are Student's
  at 97.8 %. Methods beyond the first fifteen have the first look.
- **Equal iterations** have as many prompts, or as many answers; they are no equal optimizer steps. **Equal tokens**
  count every generated token: the run that generates more is read at the other's total, linear between evaluations
  every second iteration. A row says how many optimizer steps, and at equal iterations how many answers, the sides have
  where these differ. 512 held-out problems, or the number of the row. A held-out metric is read at the end, any other
  is its mean over the second half of the iterations.
- **Stored answers**: SFT, DPO and the methods beside them take two optimizer steps per iteration, since no step on
  stored answers is off-policy. DPO reads twice as many answers as SFT, which has no use for a rejected one; KTO, whose
  answers are no pairs, takes twice as many prompts as DPO.
- **Shown**: the interval lies on the stated side of 0, and the mean is at least the smallest difference that counts.
  **Opposite**: the same on the other side. **Absent**: the interval lies within the smallest difference that counts.
  A method that shortens must also keep its accuracy. Of the first fifteen, three first models must agree; a first look
  has one seed of one of them. An interval is over seeds of these models together, and covers no fourth.
- **Undecided**: anything else. *Not enough runs*: the first look has not run. Other words say why more seeds would not
  decide: the parent leaves *no room* for the smallest difference that counts, or *little room*, less than twice that
  difference where the interval would say *absent*, since a ceiling makes any difference small; *the parent hardly
  learns*, as it gains less held-out accuracy than that difference where the interval would say *absent* of an accuracy:
  two methods that learn nothing do not differ; the mechanism *did not act*, or its figure is *not stored*; the parent
  *unlearns*, unless the effect is about this harm; *a best rate* lies *at an edge* of all rates that have run with its
  settings; runs are *equal*; *rates* are *not separated*: the sides chose different ones, the tuning seeds leave one to
  both, within 0.02 of the best accuracy, and there the difference of the tuning runs turns, or no longer counts, so
  that the rates may be what differs; or the *first models differ* after 20 seeds: one of them alone forbids a verdict
  by its sign, or, where no effect is shown, the means of two differ by more than the smallest difference that counts
  and their intervals do not overlap.
- **Learning** is about the trained policy, **mechanism** about the data of its training, such as a share of clipped
  tokens, or about a reward that the method has and its parent has not, which rises by construction. A mechanism that
  acts is no evidence of learning, so only *learning* counts above. **Exact**: a test computes the claim on a small
  example, without sampling.
- *Difference*: with each of three first models, too. Where the metric is a held-out accuracy, the difference of the
  other accuracy of the same runs follows, of *greedy* or of *sampled* answers; it decides nothing. *CPU*: the method's
  seconds by its parent's, per token at equal tokens. Runs share a machine, so a tenth says little.
- *Room*: how far the metric can move from the parent's value in the claimed direction. *Acted*: a figure, and the
  least value without which the comparison says nothing; of the parent's runs where the method repairs a harm, which has
  to be there, and else of the method's; with each of three first models, too. A share of clipped tokens says that a
  bound acted, not that a ratio of whole answers or a new bound changed what is learned. A row without a figure does not
  say that the mechanism acted. The figures of parents and the least values were stated after the first 1,489 runs of
  this page, which show them, and before all others; those of scaf_grpo, expo, ngrpo, dagrpo, hora and fgrpo and those
  that are a lost accuracy after 1,720.
- *To decide*: the fewest seeds whose interval says *shown*, *opposite* or *absent* in 80 % of the cases, if the mean
  and the spread of the differences are those of these runs, or of [earlier runs](#by-earlier-rules) of the same
  comparison where there are no others. A mean near the smallest difference that counts needs many. Only for what more
  seeds can decide.
- *p* is of no difference, corrected for the looks, and 1 where a reason forbids a verdict. *Holm*, *BH*: what a
  correction for all verdicts of this page keeps, of the family-wise error and of the false discovery rate. *Absent* is
  no rejection, so that nothing corrects it. A *shown* effect ended at the first look that decided, and the mean of such
  a comparison is too large on average. *5 of 1*: five seeds of one first model; such a verdict is about that model.
  *Stale*: the code of a component has changed since the runs.
"""
ONE_STEP = """\
With one minibatch and one epoch every ratio is 1, so that a method of the family ratio is GRPO with its aggregate. The
runs that compare ratios have eight minibatches, and `groupwise check` notes a bound that has no effect.
"""
EARLIER = """\
Before the rules above, each effect was measured at one learning rate for both sides, with three seeds, or six where
three left it open, and with 128 held-out problems. Such a row says how both methods do at that rate, so it is **no
verdict here**; it is the pilot of the rows above. *In four words*: what these runs say by the present words and
intervals. The raw results are [earlier_results.jsonl](../benchmarks/atlas/earlier_results.jsonl).
"""
FINDINGS = (
    "They describe runs by [earlier rules](#by-earlier-rules), at one learning rate, unless they say otherwise.\n"
)
BEFORE = """\
These effects were stated again, for other seeds, after the runs below. They count nowhere above.
"""
HEAD = ("method", "result", "effect, stated before these runs", "against", "parent, method; CPU", "difference",
        "seeds of models, to decide", "room", "acted", "p, kept by")  # fmt: skip
DECIDED = ("method", "result", "effect", "against", "difference", "seeds of models", "kept by")
Compared = Mapping[Study, EffectComparison | None]
Corrections = Mapping[Study, str]


def page(results: Results) -> str:
    """The text of docs/atlas.md."""
    stated, earlier = studies(), read_earlier()
    compared = {study: compare(study.method, study.effect, results) for study in stated}
    counted = {study: found for study, found in compared.items() if study not in RESTATED}
    corrections = corrected(counted)
    parts = [INTRODUCTION, fields_of_all(), summary(counted)]
    parts += ["## Decided\n", table_of(DECIDED, decided(counted, corrections))]
    rows = {study: row(study, compared[study], pilot_of(study, earlier), corrections) for study in stated}
    effects = [study for study in stated if not study.lesson]
    for family in FAMILIES:
        members = [rows[study] for study in effects if method_family(study.method) == family]
        if members:
            parts += [f"## {family.replace('_', ' ').capitalize()}\n", table_of(HEAD, members)]
    parts += ["## Ablations\n", ONE_STEP, table_of((*HEAD, "why"), [(*rows[x], x.lesson) for x in ABLATIONS])]
    parts += ["## Stated before\n", BEFORE, table_of((*HEAD, "why"), [(*rows[x], x.lesson) for x in RESTATED])]
    parts += ["## Grids\n", grids(stated, results), "## Settings\n"]
    parts += [table_of(("method", "both runs", "the method's run"), map(settings, stated))]
    parts += ["## By earlier rules\n", EARLIER, table_of(EARLIER_HEAD, map(earlier_row, earlier))]
    parts += ["## Without a measured effect\n", without(), "## Findings\n", FINDINGS, findings(), cost(results)]
    return "\n".join(part for part in parts if part)


def fields_of_all() -> str:
    """The recipe fields of every run."""
    sizes = code([line for line in SIZES if not path_of(line).startswith("evaluate.")])
    return f"Every run has {sizes} on the packaged recipe of its task; some have more [settings](#settings).\n"


def summary(compared: Compared) -> str:
    """The number of effects by kind and by result. An ablation is none."""
    lines = []
    for kind in ("learning", "mechanism"):
        found = [x for study, x in compared.items() if study.effect.kind == kind and not study.lesson]
        counts = Counter(x.verdict if x else "undecided" for x in found)
        order = ("shown", "absent", "opposite", "undecided")
        listed = ", ".join(f"{counts[word]} {word}" for word in order if word in counts)
        unmade = f", {found.count(None)} of them without enough runs" if None in found else ""
        lines.append(f"**{kind.capitalize()}**: of {len(found)} effects {listed}{unmade}.{survivors(kind, compared)}")
    exact = sum(bool(reference_of(method).toy_test) for method in published)
    lines.append("Ablations and earlier statements count in the corrections, and in no other number here.")
    return "\n".join([*lines, f"**Exact**: {exact} claims are computed by a test.\n"])


def survivors(kind: str, compared: Compared) -> str:
    """A sentence: how many of the verdicts of a kind each correction keeps."""
    corrections = corrected(compared)
    kept = [corrections[study] for study in corrections if study.effect.kind == kind and not study.lesson]
    by = ", ".join(f"{name} {sum(name in names for names in kept)}" for name in ("Holm", "BH"))
    return f" Of {len(kept)} that are *shown* or *opposite*, corrections for the whole page keep: {by}." if kept else ""


def corrected(compared: Compared) -> Corrections:
    """The corrections that keep each verdict, of all verdicts of the page together."""
    measured = {study: x for study, x in compared.items() if x is not None}
    ps = [x.p for x in measured.values()]
    kept = zip(measured.items(), holm(ps), benjamini_hochberg(ps), strict=True)
    return {
        study: ", ".join(["Holm"] * by_holm + ["BH"] * by_bh)
        for (study, x), by_holm, by_bh in kept
        if x.verdict in ("shown", "opposite")
    }


def decided(compared: Compared, corrections: Corrections) -> list[tuple[str, ...]]:
    """The rows of decided effects: learning first, then mechanisms, then ablations."""
    kinds = ("learning", "mechanism")
    found = [(study, x) for study, x in compared.items() if x is not None and x.verdict != "undecided"]
    found.sort(key=lambda pair: (bool(pair[0].lesson), kinds.index(pair[0].effect.kind)))
    return [
        (link(study.method) + ", ablation" * bool(study.lesson), result(x), f"{claim(study)} ({study.effect.kind})",
         against(study), differences(x), seeds_of(x), corrections.get(study, ""))
        for study, x in found
    ]  # fmt: skip


def row(
    study: Study, found: EffectComparison | None, pilot: EffectComparison | None, corrections: Corrections
) -> tuple[str, ...]:
    """The cells of an effect. Its pilot gives room and seeds where its runs are not enough."""
    effect, exact = study.effect, reference_of(getattr(methods, study.method)).toy_test
    toy = f"; exact: [test](../{exact.partition('::')[0]})" if exact and not study.lesson else ""
    ours = "; our claim, no paper's" * (not effect.is_papers)
    head = (link(study.method), result(found), f"{claim(study)} ({effect.kind}{toy}{ours})", against(study))
    if found is None:
        room = share(pilot.room) if pilot else ""
        return *head, "", "", ", ".join(("none", *to_decide(pilot, made=0))), room, "", ""
    means = f"{fmean(found.parent_values):.3g}, {fmean(found.method_values):.3g}; {found.cpu_ratio:.1f}"
    is_open = found.verdict == "undecided"
    p, made = f"{found.p:.2g}", len(found.differences)
    seeds = ", ".join((seeds_of(found), *(to_decide(found, made) if is_open else ())))
    kept = corrections.get(study, "")
    acted = ", first models ".join((share(found.acted), *with_each(found.acted_values, found.bases, ".2g")))
    return *head, means, differences(found), seeds, share(found.room), acted, f"{p}, {kept}" if kept else p


def against(study: Study) -> str:
    """The parent in a cell, or what differs from it where it is the method itself."""
    return link(study.effect.parent) if study.effect.parent != study.method else changed(study.effect)


def seeds_of(found: EffectComparison) -> str:
    """The seeds, and of how many first models."""
    return f"{len(found.differences)} of {len(set(found.bases))}"


def differences(found: EffectComparison) -> str:
    """The mean difference with its interval, that with each first model, and that of the other accuracy."""
    parts = [figures(found.mean, found.interval)]
    parts += [f"first models {text}" for text in with_each(found.differences, found.bases, "+.2g")]
    if found.other_differences:
        other = "sampled" if found.expected_effect.metric == ACCURACY_GREEDY else "greedy"
        parts.append(f"{other} {figures(fmean(found.other_differences), found.other_interval)}")
    return "; ".join(parts)


def with_each(values: Sequence[float], bases: Sequence[int], form: str) -> list[str]:
    """The mean with each first model, if there are several."""
    means = [f"{fmean(x):{form}}" for x in by_first_model(values, bases).values()] if values else []
    return [", ".join(means)] if len(means) > 1 else []


def to_decide(known: EffectComparison | None, made: int) -> list[str]:
    """The seeds that would decide, if something is known of them and more seeds can."""
    return [] if known is None or known.obstacle else [seeds_in_words(known.seeds_needed, made)]


def result(found: EffectComparison | None) -> str:
    """The verdict in a cell, with the reason why there is none, and what the method should keep."""
    if found is None:
        return f"*undecided*: {NOT_ENOUGH_RUNS}"
    obstacle = f": {found.obstacle}" if found.obstacle else ""
    kept = f", {found.expected_effect.kept} {fmean(found.kept_differences):+.3g}" if found.kept_differences else ""
    return f"*{found.verdict}*{obstacle}{kept}" + ", stale" * found.stale


def figures(mean: float, interval: tuple[float, float]) -> str:
    """A mean difference with its interval."""
    low, high = interval
    return f"{mean:+.3g} ({low:+.3g} to {high:+.3g})"


def share(x: float | None) -> str:
    return "" if x is None else f"{x:.2g}"


def claim(study: Study) -> str:
    """An effect in a cell, with the sizes of its runs."""
    return f"{statement(study.effect)}, {study.effect.task}, {sizes(study.method, study.effect)}"


def statement(effect: ExpectedEffect) -> str:
    """A metric, its direction, the smallest difference that counts, what is kept, and the figure of the mechanism."""
    change = {"up": "higher", "down": "lower"}[effect.direction]
    kept = f", `{effect.kept}` not lower by {effect.kept_margin:g}" if effect.kept else ""
    whose = "the parent's " if effect.acted_in == "parent" else ""
    whose += "lost " * is_loss(effect)
    acted = f", acted: {whose}`{effect.acted}` at least {effect.acted_least:g}" if effect.acted else ""
    return f"`{effect.metric}` {change} by {effect.min_difference:g}{kept}{acted}"


def grids(stated: Iterable[Study], results: Results) -> str:
    """The scores of each side on the tuning seeds, those of a side that several effects share once."""
    rows: dict[Side, tuple[str, ...]] = {}
    for study in stated:
        for side in sides_of(study.method, study.effect):
            choices, chosen = side.choices(results), side.chosen(results)
            scored = zip(choices, side.scores(choices, results), strict=True)
            if cells := [score_cell(line, x, chosen) for line, x in scored if x == x]:
                rows.setdefault(side, (link(side.method), side.task, f"`{side.metric}`", "; ".join(cells)))
    if not rows:
        return "None has run yet.\n"
    head = ("side", "task", "chosen by", "learning rate, further constants: mean over the tuning seeds")
    return table_of(head, rows.values())


def score_cell(line: tuple[str, ...], score: float, chosen: tuple[str, ...] | None) -> str:
    """A choice with its score, bold if it is taken."""
    rate = next(i for i, text in enumerate(line) if path_of(text) == "optimizer.lr")
    words = ", ".join(text.partition(" = ")[2] for text in line[rate:])
    text = f"{words}: {'collapsed' if score == -float('inf') else f'{score:.3f}'}"
    return f"**{text}**" if line == chosen else text


def settings(study: Study) -> tuple[str, str, str]:
    """The settings of a study, beyond those of every run."""
    return link(study.method), code(study.effect.settings), code(study.effect.own_settings)


EARLIER_HEAD = ("method", "against", "effect as it was stated", "difference", "seeds", "then", "in four words")


def earlier_row(earlier: Earlier) -> tuple[str, ...]:
    """The cells of an effect that was measured by earlier rules."""
    study, found = earlier.study, earlier.comparison
    effect = f"{statement(study.effect)}, {study.effect.task}, equal {study.effect.runs_matched_by}"
    return (link(study.method), link(study.effect.parent), effect, figures(found.mean, found.interval),
            str(len(found.differences)), earlier.word, result(found))  # fmt: skip


def without() -> str:
    """The methods without an effect, each with its reason."""
    missing = [(m.__name__, reference_of(m)) for m in published if reference_of(m).expected_effect is None]
    rows = [
        (link(name), reference.unmeasured_reason or "No effect is stated yet.", "shown" if reference.toy_test else "")
        for name, reference in missing
    ]
    return table_of(("method", "reason", "in expectation"), rows)


def findings() -> str:
    """What was learned about methods here, beside their effects."""
    told = [(m.__name__, reference_of(m).our_finding) for m in published]
    return "\n".join(f"- {link(name)}: {finding}" for name, finding in told if finding) + "\n"


def cost(results: Results) -> str:
    """The number of runs, their CPU seconds, and the commits that they ran at."""
    if not results:
        return ""
    seconds = [result.cpu_seconds for result in results.values()]
    commits = sorted({result.commit for result in results.values()})
    return (
        f"## Cost\n\n{len(seconds)} runs, {sum(seconds) / 60:.0f} CPU minutes, at most {max(seconds):.0f} CPU seconds "
        f"per run, at {', '.join(commits)}.{modified(results)} Raw results: "
        "[results.jsonl](../benchmarks/atlas/results.jsonl).\n"
    )


def modified(results: Results) -> str:
    """A sentence on the runs of trees that differed from their commit, by method; empty without one."""
    counts = Counter(run.method for run, result in results.items() if result.commit.endswith("-modified"))
    listed = ", ".join(f"{count} of {link(method)}" for method, count in sorted(counts.items()))
    return f" Runs of a tree that differed from its commit (*modified*): {listed}." if counts else ""


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], ""])


def link(method: str) -> str:
    """A method's name with a link to its section on the page of methods."""
    return f"[{method}](methods.md#{method})"


def code(lines: Sequence[str]) -> str:
    """Settings as code, on one line. A pipe would end the cell."""
    return ", ".join(f"`{line}`" for line in lines)
