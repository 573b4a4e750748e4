"""The last output of a run: its results, its files and the next command."""

import shlex
from pathlib import Path

from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import counted
from groupwise.data import ACCURACY_GREEDY, EVAL_LOSS, EVAL_PAIR_ACCURACY, EVAL_TOKEN_ACCURACY, INTERVALS, SCORE_GREEDY
from groupwise.models import find_model, stored_dtype
from groupwise.runs.json_lines import read_lines
from groupwise.runs.next_command import evaluate_command, extend_command, resume_command
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects
from groupwise.training.run_guards import PATIENCE
from groupwise.training.run_recorder import RunRecorder
from groupwise.verifiers.no_verifier import NoVerifier


def closing_message(layout: RunLayout, report: Path, recorder: RunRecorder, ready: RunObjects) -> str:
    """The last output of a run: held-out accuracy and score, paths, and the next command."""
    recipe, run = ready.recipe, layout.run_directory
    if recorder.stopping:
        status = f"{recorder.stopping} after {recorder.done} of {counted(recipe.iterations, 'iteration')}; saved."
        if recorder.done < 0:
            status = f"{recorder.stopping} during the warm start; saved."
        command = resume_command(run, *code_of(ready.user_code))
        return f"{status}{held_out_summary(layout)}\n  report: {report}\n  continue: {command}"
    status = f"done: {counted(recipe.iterations, 'iteration')}"
    if recorder.solved:
        count = f"{recorder.done} of {counted(recipe.iterations, 'iteration')}"
        status = f"solved: every answer of the last {PATIENCE} iterations is correct, after {count}"
    model, name = f"{layout.model}{dtype_note(recipe)}", shlex.quote(str(run))
    evaluate = evaluate_command(run, *code_of(ready.user_code))
    if isinstance(ready.verifier, NoVerifier):
        evaluate = f"groupwise sample {name} PROMPT"
    if recipe.trains_reward_model:
        evaluate = f"groupwise train --verifier.kind RewardModel --verifier.path {shlex.quote(str(layout.model))}"
    return (
        f"{status}{held_out_summary(layout)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    {evaluate}\n          groupwise report {name} ANOTHER_RUN"
    )


def nothing_to_do(layout: RunLayout, ready: RunObjects, recorder: RunRecorder) -> list[str]:
    """The message that there is nothing to resume, if the run is finished; else empty."""
    iterations = ready.recipe.iterations
    count = f"{recorder.done} of {counted(iterations, 'iteration')}"
    if recorder.solved and recorder.done < iterations:
        command = extend_command(layout.run_directory, 2 * iterations, *code_of(ready.user_code))
        return [f"nothing to do: the task is solved, after {count}", f"train on nevertheless: {command}"]
    return [f"nothing to do: {count} are done"] if recorder.done >= iterations else []


def code_of(use: UserCode) -> tuple[str, tuple[str, ...]]:
    """The command-line options for the code of a run, and the names of its functions in memory."""
    return use.options, tuple(use.functions_in_memory)


def dtype_note(recipe: Recipe) -> str:
    """A note on the dtype of the trained weights, if the model that the run started from has another."""
    if recipe.lora is not None and not recipe.trains_reward_model:
        return ""
    source = str(stored_dtype(find_model(recipe.model))).removeprefix("torch.")
    return "" if source == recipe.machine.dtype else f"  ({recipe.machine.dtype}; its source is {source})"


def held_out_summary(layout: RunLayout) -> str:
    """The first and the last held-out loss, accuracy and score in a run's metrics; empty without evaluations."""
    lines, summary = list(read_lines(layout.metrics)), ""
    words = {"loss": EVAL_LOSS, "token accuracy": EVAL_TOKEN_ACCURACY, "pair accuracy": EVAL_PAIR_ACCURACY}
    words |= {"greedy": ACCURACY_GREEDY, "greedy score": SCORE_GREEDY}
    for word, metric in words.items():
        if not (evaluated := [line for line in lines if metric in line]):
            continue
        first, last = (line[metric] for line in (evaluated[0], evaluated[-1]))
        before = f"{first:.3f} -> " if len(evaluated) > 1 else ""
        summary += f"\n  held-out {word} {before}{last:.3f}"
        if metric in INTERVALS:
            low, high = (evaluated[-1][name] for name in INTERVALS[metric])
            ends = f"95 % interval {low:.3f} .. {high:.3f}" if low < high else "all scores are equal"
            summary += f"  ({ends})"
    return summary
