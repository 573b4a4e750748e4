"""One run of Groupwise on stored answers, like `groupwise train` with its logs and without evaluation. Prints JSON.

python -m benchmarks.trl_comparison.run_groupwise_stored sft
"""

from typing import Any

from benchmarks.trl_comparison.paths import model_of, problems_of
from benchmarks.trl_comparison.regimes import STORED, STORED_MICROBATCH_TOKENS, Regime
from benchmarks.trl_comparison.run_groupwise import train
from benchmarks.trl_comparison.run_options import run_options
from benchmarks.trl_comparison.stopwatch import Stopwatch, versions
from benchmarks.trl_comparison.turns import print_json

from groupwise.config.recipe import Evaluate, Machine, Recipe, Save
from groupwise.config.user_code import UserCode
from groupwise.learner import AdamW
from groupwise.methods import dpo, sft
from groupwise.training.build_run import build


def recipe_of(regime: Regime, *, iterations: int, seed: int, machine: Machine) -> Recipe:
    """The regime as a recipe."""
    return Recipe(
        model=str(model_of(regime)),
        task=problems_of(regime),
        method=sft() if regime.loss == "sft" else dpo(),
        prompts=regime.prompts,
        iterations=iterations,
        seed=seed,
        optimizer=AdamW(lr=regime.lr, lr_scheduler=regime.decay),
        machine=machine,
        evaluate=Evaluate(every=0),
        save=Save(every=0),
    )


def measure(regime: Regime, *, iterations: int, seed: int, machine: Machine, turns: bool = False) -> dict[str, Any]:
    """Run and time the regime. With `turns`, waits for a line before each turn after the warm-up."""
    about = {"system": "groupwise", "regime": regime.letter, "threads": machine.threads}
    packages = versions("groupwise", "torch", "transformers", "numpy")
    watch = Stopwatch(regime.turns if turns else (), {**about, "versions": packages})
    recipe = recipe_of(regime, iterations=iterations, seed=seed, machine=machine)
    train(recipe, build(recipe, UserCode()), watch)
    return watch.as_json()


def main(argv: list[str] | None = None) -> None:
    parser = run_options("Run a regime of stored answers in Groupwise", STORED)
    a = parser.parse_args(argv)
    regime = STORED[a.regime]
    iterations = a.iterations or regime.warmup + regime.timed
    machine = Machine(threads=a.threads, microbatch_tokens=STORED_MICROBATCH_TOKENS)
    print_json(measure(regime, iterations=iterations, seed=a.seed, machine=machine, turns=a.turns))


if __name__ == "__main__":
    main()
