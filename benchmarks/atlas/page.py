"""Write docs/atlas.md from the stored results."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.atlas.studies import ABLATIONS, Study, studies

from groupwise import methods
from groupwise.certificates.studies import SIZES, EffectComparison, StudyRun, StudyRunResult, compare
from groupwise.methods import ExpectedEffect, published, reference_of
from groupwise.methods.families import FAMILIES, method_family

INTRODUCTION = """\
# The atlas of effects

Does a method do here what its paper claims? Each published method states one effect in its file before any run measures
it: a metric, a direction, the smallest difference that counts, and the method that it changes. `make atlas` runs both
methods with three seeds on a [small task](small-tasks.md), and writes this page from the stored results. It skips
finished runs, and runs a shared parent once. One row: `python -m benchmarks.atlas gspo`.

These are small models and short runs. *Not shown* means that the effect did not appear at this scale; it does not
refute a paper. Equal steps are equally many iterations with as many prompts. Equal tokens count every generated token:
the run that generates more is read up to the other's total.

- The values are means over seeds; the *difference* is the method minus its parent, with the same seed. A
  metric of training is the mean over the second half of the iterations; a held-out metric is that of the last
  evaluation.
- The *interval* is Student's 95 % interval of the mean difference over seeds. Where three seeds leave the verdict open,
  there are six. All seeds start from the same model.
- *Shown*: the interval lies on the stated side of 0, and the mean is at least the smallest difference that counts.
  *Opposite*: the same on the other side.
- *In expectation*: a test computes the claim exactly on a small example, without sampling.
- *Stale*: the code of a component has changed since the runs.
"""
ONE_STEP = """\
With one minibatch and one epoch every ratio is 1, so that a method of the family ratio is GRPO with its aggregate. The
runs that compare ratios have eight minibatches, and `groupwise check` notes a bound that has no effect.
"""
HEAD = ("method", "against", "effect, stated before the runs", "parent's value", "method's value", "difference",
        "95 % interval", "seeds", "result", "in expectation")  # fmt: skip


def page(results: Mapping[StudyRun, StudyRunResult]) -> str:
    """The text of docs/atlas.md."""
    stated = studies()
    compared = {study: compare(study.method, study.effect, results) for study in (*stated, *ABLATIONS)}
    parts = [INTRODUCTION, fields_of_all(), summary([compared[study] for study in stated])]
    for family in FAMILIES:
        members = [study for study in stated if method_family(study.method) == family]
        if members:
            title = family.replace("_", " ").capitalize()
            parts += [f"## {title}\n", table([row(study, compared[study]) for study in members])]
    parts += ["## Ablations\n", ONE_STEP, *(ablation(study, compared[study]) for study in ABLATIONS)]
    parts += ["## Settings\n", table_of(("method", "both runs", "the method's run"), map(settings, stated))]
    parts += ["## Without a measured effect\n", without(), "## Findings\n", findings(), cost(results)]
    return "\n".join(part for part in parts if part)


def fields_of_all() -> str:
    """The recipe fields of every run."""
    return f"Every run has {code(SIZES)} on the packaged recipe of its task; some have more [settings](#settings).\n"


def summary(compared: Sequence[EffectComparison | None]) -> str:
    """The number of effects by result."""
    counts = Counter(comparison.verdict if comparison else "not measured" for comparison in compared)
    order = ("shown", "not shown", "opposite", "not measured")
    return f"Of {len(compared)} effects: {', '.join(f'{counts[word]} {word}' for word in order if word in counts)}.\n"


def row(study: Study, comparison: EffectComparison | None) -> tuple[str, ...]:
    """The cells of a stated effect."""
    effect, toy = study.effect, reference_of(getattr(methods, study.method)).toy_test
    against = link(effect.parent) if effect.parent != study.method else "itself, other [settings](#settings)"
    exact = f"[shown](../{toy.partition('::')[0]})" if toy else ""
    head = (link(study.method), against, claim(effect))
    if comparison is None:
        return (*head, "", "", "", "", "", "not measured", exact)
    return (*head, *figures(comparison), exact)


def figures(comparison: EffectComparison) -> tuple[str, ...]:
    """The cells of a comparison: both means, difference, interval, seeds, result."""
    means = (f"{sum(values) / len(values):.3g}" for values in (comparison.parent_values, comparison.method_values))
    low, high = comparison.interval
    result = f"*{comparison.verdict}*" + ", stale" * comparison.stale
    interval, seeds = f"{low:+.3g} to {high:+.3g}", str(len(comparison.differences))
    return *means, f"{comparison.mean:+.3g}", interval, seeds, result


def claim(effect: ExpectedEffect) -> str:
    """An effect in a cell."""
    change = {"up": "higher", "down": "lower"}[effect.direction]
    return f"`{effect.metric}` {change} by {effect.min_difference:g}, {effect.task}, equal {effect.runs_matched_by}"


def ablation(study: Study, comparison: EffectComparison | None) -> str:
    """A paragraph on an ablation."""
    own = code(study.effect.own_settings)
    result = str(comparison) if comparison else "not measured"
    return f"{study.lesson} {link(study.method)} with {own}, {claim(study.effect)}: {result}.\n"


def settings(study: Study) -> tuple[str, str, str]:
    """The settings of a study, beyond those of every run."""
    return link(study.method), code(study.effect.settings), code(study.effect.own_settings)


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


def cost(results: Mapping[StudyRun, StudyRunResult]) -> str:
    """The number of runs, their CPU seconds, and the commits that they ran at."""
    if not results:
        return ""
    seconds = [result.cpu_seconds for result in results.values()]
    commits = sorted({result.commit for result in results.values()})
    return (
        f"## Cost\n\n{len(seconds)} runs, {sum(seconds) / 60:.0f} CPU minutes, at most {max(seconds):.0f} CPU seconds "
        f"per run, at {', '.join(commits)}. Raw results: [results.jsonl](../benchmarks/atlas/results.jsonl).\n"
    )


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table of effects."""
    return table_of(HEAD, rows)


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
