"""SmolLM2 in four templates, before and after training. A part of studies/smollm2.py.

Stated after the other parts of that study, and before the runs of this one: six iterations of GRPO on 8 problems with 8
answers each, at most 48 tokens, and 4 answers to each of the held-out problems before and after. The learning rate is
twice that of the long runs, for half of their iterations. Compared, within a seed: sampled accuracy after minus before,
in each template; it should rise in each. And the difference between the best and the worst template, after minus
before. Dr. GRPO says that training makes up for a template that does not fit, so it should fall; whether so few
iterations are enough is open.
"""

from dataclasses import replace

from groupwise.evaluation.seed_verdicts import NOT_ENOUGH_RUNS
from studies.pass_at_k import RESULTS
from studies.study import LEAST_ACCURACY, NO_KL, SEEDS, Arm, Measured, cost, table

QA = "template = Q: {prompt}\nA:"
PROBLEMS = ("task = studies/smollm2.jsonl", "verifier = last_number", "sampling.temperature = 0.6",
            "machine.dtype = bfloat16", "evaluate.problems = 48", NO_KL)  # fmt: skip
FEW, LEAST_APART = 6, 0.05
"""The iterations in each template, and the smallest change of the difference between templates that counts."""
IN_TEMPLATE = (*PROBLEMS, "sampling.max_tokens = 48", f"iterations = {FEW}", "method.group_size = 8",
               "optimizer.lr = 4e-5", "optimizer.lr_scheduler = constant", "evaluate.samples = 4")  # fmt: skip
UNTRAINED = (*PROBLEMS, "sampling.max_tokens = 48", "iterations = 0", "evaluate.samples = 8")
ACCURACIES = {
    "greedy": ("eval/accuracy_greedy", "eval/low_greedy", "eval/high_greedy"),
    "sampled": ("eval/accuracy", "eval/low", "eval/high"),
}
TRUNCATED, LENGTH = "eval/truncated", "eval/mean_length"


def untrained(label: str, *settings: str) -> Arm:
    """An arm that only evaluates the model."""
    return Arm(label=label, method="grpo", task="smollm2", settings=(*UNTRAINED, *settings))


TEMPLATES = {
    "chat": untrained("`chat`, its own", "template = chat"),
    "bare": untrained("the bare question", "template = no"),
    "r1": untrained("`r1`", "template = r1", 'sampling.stop = ["</answer>"]'),
    "qa": untrained("`Q: ... A:`", QA, 'sampling.stop = ["\\n"]'),
}
TRAINED = {
    key: replace(arm, settings=(*IN_TEMPLATE, *arm.settings[len(UNTRAINED) :])) for key, arm in TEMPLATES.items()
}
"""The same templates, with a few iterations of training."""


def share(m: Measured, key: str, kind: str) -> tuple[float, float, float]:
    """The accuracy of a template, and the ends of its interval over problems: means over seeds."""
    value, low, high = (m.mean(key, name, 0, 0).mean for name in ACCURACIES[kind])
    return value, low, high


def templates(m: Measured) -> str:
    """The table of the templates."""
    rows = []
    for key, one in m.arms.items():
        shares = ("{:.3f} ({:.3f} to {:.3f})".format(*share(m, key, kind)) for kind in ACCURACIES)
        truncated, length = (m.mean(key, name, 0, 0).mean for name in (TRUNCATED, LENGTH))
        greedy = len(set(m.mean(key, ACCURACIES["greedy"][0], 0, 0).values))  # it does not depend on the seed
        rows.append((one.label, *shares, f"{truncated:.0%}", f"{length:.0f}", f"{greedy} / {len(m.seeds)}"))
    head = ("template", *ACCURACIES, "cut off", "length", "evaluations, greedy / sampled")
    return f"{table(head, rows)}\n\n{cost(m)}"


def trained(m: Measured) -> str:
    """The table of the templates before and after training."""
    rows, at, complete = [], (0, FEW), len(m.seeds) == len(SEEDS)
    sampled = {key: [m.mean(key, ACCURACIES["sampled"][0], i, i) for i in at] for key in m.arms}
    for key, (before, after) in sampled.items():
        gain = after.minus(before, LEAST_ACCURACY)
        greedy, cut, length = (
            " / ".join(f"{m.mean(key, name, i, i).mean:.3g}" for i in at)
            for name in (ACCURACIES["greedy"][0], TRUNCATED, LENGTH)
        )
        word = gain.result(*RESULTS) if complete else f"*undecided*: {NOT_ENOUGH_RUNS}"
        rows.append((m.arms[key].label, before, after, gain, greedy, cut, length, word))
    apart = [m.estimate(max(x) - min(x) for x in zip(*(own[i].values for own in sampled.values()))) for i in (0, 1)]
    moved = apart[1].minus(apart[0], LEAST_APART)
    change = moved.stated("grows", "shrinks") if complete else moved.brief
    head = ("template", "before", "after", "difference", "greedy", "cut off", "length", "result")
    return (
        f"{table(head, rows)}\n\nThe best template minus the worst: {apart[0].brief} before and {apart[1].brief} "
        f"after, a change of {change}, {len(m.seeds)} seeds.\n\n{cost(m)}"
    )
