"""Converts the arguments of `gw.train` and similar calls to recipe fields, data rows and reward functions."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from groupwise.api.reward import NO_REWARD, Reward, reward_of, write_code
from groupwise.api.write_rows import answer_column, rows_in_memory, write_rows
from groupwise.config.model_dependent_defaults import is_set, tables_of
from groupwise.config.toml import PythonText
from groupwise.config.train_keyword_arguments import fields_of, overrides_of
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import GroupwiseError, Usage
from groupwise.runs.run_layout import RunLayout
from groupwise.tasks import DataRows
from groupwise.verifiers.reward_argument_of_verifier import WRITTEN

ANSWER_COLUMN = "columns.answer"
EVAL_ROWS = "eval_data.jsonl"
"""The file of `eval_data` beside that of the rows."""


@dataclass(frozen=True, slots=True, eq=False)
class CallArguments:
    """The arguments of a call as overrides of a recipe, with data rows and reward functions from memory.

    A command has overrides only.
    """

    overrides: tuple[tuple[str, Any], ...] = ()
    rows: list[Mapping[str, Any]] | None = None
    eval_rows: list[Mapping[str, Any]] | None = None
    reward: Reward = NO_REWARD
    agent_functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The agent by name, if it is a function of the calling program."""

    def write(
        self, data: Path, code: Path, allowed: Permissions, source: str | Path | None = None
    ) -> tuple[list[tuple[str, Any]], UserCode]:
        """Write the data rows to the file `data`, and reward functions with a source text to the folder `code`.

        `source` is the recipe that the arguments change. Returns the overrides with the fields for these files, and the
        loaded code.
        """
        fields: dict[str, Any] = {}
        overrides = [*self.overrides]
        if self.rows is not None:
            write_rows(self.rows, data)
            fields["task"] = DataRows(str(data))
            explicit = is_set(tables_of("", overrides), ANSWER_COLUMN)
            columns = tables_of(source or "", overrides).get("columns", {})
            overrides.append((ANSWER_COLUMN, PythonText(answer_column(self.rows, columns, explicit=explicit))))
        if self.eval_rows is not None:
            file = data.with_name(EVAL_ROWS)
            write_rows(self.eval_rows, file)
            fields["held_out"] = DataRows(str(file))
        if self.reward.verifier_toml:
            fields["verifier"] = self.reward.verifier_toml
        written = write_code(self.reward, code)
        use = load_use(replace(allowed, use=[*allowed.use, *written]), own=written)
        return [*overrides_of(fields), *overrides], replace(
            use, functions_in_memory={**self.reward.functions_in_memory, **self.agent_functions}
        )


@contextmanager
def own_words(layout: RunLayout) -> Iterator[None]:
    """A context whose errors name a program's rows and functions, not the files that are written for them.

    A run that began keeps its files, and they keep their names.
    """
    try:
        yield
    except GroupwiseError as error:
        if not layout.is_run:
            data, code = layout.data, layout.code / f"{WRITTEN}.py"
            names = {data: "data", data.with_name(EVAL_ROWS): "eval_data", code: "the reward"}
            for file, name in names.items():
                error.what = error.what.replace(str(file), name)
                error.evidence = error.evidence.replace(str(file), name)
        raise


def arguments_of(named: Mapping[str, Any], settings: Mapping[str, Any]) -> CallArguments:
    """Combine a call's named arguments (`named`; None counts as not passed) with its recipe fields (`settings`).

    Raises `Usage` for a field that is set twice or unknown, and for data or a reward of another kind.
    """
    fields = fields_of({word: value for word, value in named.items() if value is not None}, settings)
    if not isinstance(model := fields.get("model", ""), str | PathLike):
        fix = (
            "pass a directory, a packaged name or a name on the hub; write a model in memory with save_pretrained(DIR)"
        )
        raise Usage(f"model is {type(model).__name__}", fix=fix)
    reward = reward_of(fields.pop("verifier")) if "verifier" in fields else NO_REWARD
    rows = rows_in_memory(fields["task"]) if "task" in fields else None
    if rows is not None:
        del fields["task"]
    eval_rows = rows_in_memory(fields["held_out"], "eval_data") if "held_out" in fields else None
    if eval_rows is not None:
        del fields["held_out"]
    agent = agent_in_memory(fields["agent"]) if callable(fields.get("agent")) else {}
    if agent:
        fields["agent"] = {"file": next(iter(agent))}
    return CallArguments(tuple(overrides_of(fields)), rows, eval_rows, reward, agent)


def agent_in_memory(agent: Any) -> dict[str, Callable[..., Any]]:
    """An agent of the calling program, by the name that its run's recipe has. `Usage` for anything else."""
    if not callable(agent) or isinstance(agent, type):
        fix = "pass an async function: async def agent(row, client)"
        raise Usage(f"agent is {agent.__name__ if isinstance(agent, type) else type(agent).__name__}", fix=fix)
    name = getattr(agent, "__name__", type(agent).__name__)
    return {name if name.isidentifier() else "agent": agent}
