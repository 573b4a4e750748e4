"""Mean and spread of the ratio at each denoising step, for flow_grpo and grpo_guard on `rings`.

python -m benchmarks.step_ratios

Both methods train with the same settings. Only the second optimizer step of an iteration counts: in the first one every
ratio is 1. The numbers are pooled over the iterations of a run, then averaged over seeds.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.config.packaged import find_recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.data import Batch
from groupwise.learner import Learner
from groupwise.lifecycle.create_or_open_run import begin
from groupwise.lifecycle.run import run_from
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import build

METHODS, SEEDS = ("flow_grpo", "grpo_guard"), (0, 1, 2)
ITERATIONS, STEPS, UNIT = 20, 9, 1e-3
"""`rings` has ten denoising steps, and the last one has no noise. Numbers are printed in units of 1e-3."""


def fields_of(method: str, seed: int) -> list[tuple[str, str]]:
    """The settings of a run, over those of the packaged recipe."""
    penalties = ", objective.penalties = []" if method == "flow_grpo" else ""
    sizes = f"group_size = 16, minibatches = 2{penalties}"
    fields = {"method": f'{{ base = "{method}", {sizes} }}', "seed": seed, "iterations": ITERATIONS}
    fields |= {"evaluate.every": 0, "evaluate.problems": 1, "save.every": 0}
    return [(name, str(value)) for name, value in fields.items()]


@contextmanager
def recorded(ratios: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Append the denoising step and the ratio of each token of each optimizer step in the context."""
    step = Learner.step

    def recording(learner: Learner, batch: Batch, plan: Any, objective: Any, *arguments: Any) -> Any:
        result = step(learner, batch, plan, objective, *arguments)
        trained = result.batch
        number = trained.at_trained([sample.tokens for sample in trained.samples], torch.long)
        ratios.append((number, objective.surrogate.ratio(trained).double()))
        return result

    Learner.step = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        Learner.step = step  # type: ignore[method-assign]


def ratios_of(method: str, seed: int) -> Sequence[tuple[float, float]]:
    """Mean minus 1 and standard deviation of the ratio at each denoising step of a run."""
    recipe, ratios, use = read_recipe(find_recipe("rings"), fields_of(method, seed)), [], UserCode()
    with tempfile.TemporaryDirectory() as folder, recorded(ratios):
        objects = build(recipe, use)
        with RunLock(RunLayout(Path(folder))) as lock:
            run_from(begin(lock, objects, use, method, "benchmarks.step_ratios"), objects)
    number, ratio = (torch.cat(columns) for columns in zip(*ratios[1::2]))
    by_step = [ratio[number == step] for step in range(STEPS)]
    return [(float(x.mean()) - 1, float(x.std())) for x in by_step]


def main() -> None:
    rows = {method: [ratios_of(method, seed) for seed in SEEDS] for method in METHODS}
    print(f"| step | {' | '.join(f'{method}: mean - 1 | spread' for method in METHODS)} |")
    print(f"|---|{'---|---|' * len(METHODS)}")
    for step in range(STEPS):
        means = [sum(run[step][i] for run in rows[method]) / len(SEEDS) for method in METHODS for i in (0, 1)]
        print(f"| {step} | {' | '.join(f'{x / UNIT:.3g}' for x in means)} |")


if __name__ == "__main__":
    main()
