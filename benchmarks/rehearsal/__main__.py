"""Rehearse a step of many ranks: python -m benchmarks.rehearsal RECIPE --ranks 64 [--machines FILE] [--FIELD VALUE].

Every rank takes its step on the learner's own code, one after the other in this process, without a GPU. The model's
directory needs its config.json alone. Prints the bytes that a rank sends, its exchanges and its memory, beside the
plan's; ends with exit code 7 if the exchanges of the ranks do not fit together, which would be a hang.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from benchmarks.rehearsal.comparison import exchange_lines, rows_of, table
from benchmarks.rehearsal.exchanges import replay
from benchmarks.rehearsal.rank_step import first_step, rehearse

from groupwise.commands.parsing import split
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import GroupwiseError
from groupwise.models import find_model
from groupwise.planning.cost_model import draw_lengths
from groupwise.planning.machines import on_machines, read_machines
from groupwise.planning.read_model_shape import planned_shape, weights_of


def main(words: Sequence[str]) -> int:
    """Rehearse the recipe of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal")
    parser.add_argument("recipe")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--machines", required=True, help="a machine file: its lengths and its dtype are used")
    known, rest = parser.parse_known_args(words)
    others, overrides = split("plan", rest)
    if others:
        parser.error(f"one recipe is rehearsed, and {others[0]} is another word; a field is --FIELD VALUE")
    torch.set_num_threads(1)
    cluster = {"ranks": str(known.ranks), "reduction_lanes": str(known.ranks), "shard": "full"}
    fields = {f"cluster.{name}": value for name, value in cluster.items()} | dict(overrides)
    machines = read_machines(known.machines)
    recipe = on_machines(read_recipe(known.recipe, list(fields.items())), machines)
    shape, start = planned_shape(find_model(recipe.model, weights=False)), time.process_time()
    prompt = machines.assumed_lengths.prompt
    batch = first_step(recipe, draw_lengths(machines.assumed_lengths, prompt, recipe.sampling.max_tokens))
    traces = rehearse(recipe, shape, batch)
    replay([trace.exchanges for trace in traces])
    each = traces[0].microbatches
    print(f"{weights_of(shape):,} weights, {known.ranks} ranks, cluster.shard {recipe.cluster.shard}")
    print(f"a step of {len(batch):,} answers and {batch.tokens:,} tokens of answers; microbatches of a rank: {each}")
    print(*exchange_lines(traces), sep="\n")
    print(f"all {sum(len(trace.exchanges) for trace in traces):,} exchanges fit together: no rank waits for ever\n")
    print(table(list(rows_of(recipe, shape, prompt, traces))))
    print(f"\nrehearsed, not measured; {time.process_time() - start:.0f} CPU seconds")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GroupwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
