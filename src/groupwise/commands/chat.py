"""`groupwise chat`: talk to a model, line by line. Ctrl-D ends."""

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from groupwise.config.user_code import Permissions, load_use
from groupwise.core import BadData, GroupwiseError, Usage, visible
from groupwise.data import Sample
from groupwise.inference.evaluate_model import find_model_of, for_one_answer, open_model, unused
from groupwise.models import find_model, find_template, read_shape, read_tokenizer
from groupwise.training.progress_output import notify

Answering = Callable[[Any], Coroutine[Any, Any, tuple[Sample, ...]]]
"""A function that answers one prompt or one conversation: `OpenModel.answers`."""
ALONE = [
    ("environment", ""),
    ("agent", "none"),
    ("method.strategy", "Independent"),
    ("evaluate.strategy", "Independent"),
]
"""Overrides that remove a run's environment and strategies: in a chat, the user takes their place."""


def chat(
    model_or_run: str,
    overrides: Sequence[tuple[str, str]] = (),
    allowed: Permissions = Permissions(),  # noqa: B008
) -> int:
    """Answer each line of the standard input: with a chat template as one conversation, else each line by itself.

    Answers are greedy unless `--sampling.temperature` is given. A line that fails, such as one that makes the
    conversation too long for the model, is reported and left out.
    """
    loaded = load_use(allowed)
    changes = [*ALONE, *usual_template(model_or_run, overrides), *for_one_answer(overrides)]
    for line in unused(overrides):
        notify(line)
    with asyncio.Runner() as runner:
        model = runner.run(open_model(model_or_run, changes, loaded))
        shape = read_shape(find_model(model.recipe.model), trust_remote_code=loaded.trust_remote_code)
        if shape.tokens_are_denoising_steps:
            fix = f"make a picture: groupwise sample {shlex.quote(model_or_run)} PROMPT --out FILE.png"
            raise Usage(f"chat needs a language model, and {model_or_run} is a {shape.kind_label}", fix=fix)
        talk(runner, model.answers, conversation=model.template.name == "chat")
    return 0


def usual_template(model_or_run: str, overrides: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The override that selects the chat template, for a model directory that has one. A run keeps its own template."""
    if find_model_of(model_or_run) or any(path == "template" for path, _ in overrides):
        return []
    try:
        find_template("chat", read_tokenizer(find_model(model_or_run)))
    except BadData:
        return []
    return [("template", "chat")]


def talk(runner: asyncio.Runner, answers: Answering, *, conversation: bool) -> None:
    """Answer each line until the input ends: by itself, or as the next turn of a `conversation`."""
    messages: list[dict[str, str]] = []
    for line in lines():
        messages.append({"role": "user", "content": line})
        try:
            (sample,) = runner.run(answers(messages if conversation else line))
        except GroupwiseError as error:
            print(f"error: {error}", file=sys.stderr)
            messages.pop()
            continue
        print(visible(sample.text, lines=True), flush=True)
        messages.append({"role": "assistant", "content": sample.text})


def lines() -> Iterator[str]:
    """The lines of standard input that are not empty. On a terminal, the user edits each after the prompt `> `."""
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  # input() then edits lines
    while True:
        try:
            line = input("> " if terminal else "")
        except EOFError:
            if terminal:
                print()
            return
        if line.strip():
            yield line
