"""Tasks by the texts that are short for their tables: a packaged task, a published set, a source of rows."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from groupwise.core import Usage, check_types, class_name, looks_like_path, or_near, part_named, part_names, plain_name
from groupwise.data import Ids, Task, TaskSettings
from groupwise.tasks.published_sets import PRESETS
from groupwise.tasks.read_rows import is_source
from groupwise.tasks.row_columns import RowColumns
from groupwise.tasks.rows_task import RowsTask
from groupwise.tasks.stored_rows import read_stored

__all__ = ["DataRows", "named_task", "task_table"]

CONVERSIONS = {".txt": 'import json, sys; [print(json.dumps({"prompt": x.strip()})) for x in open(sys.argv[1])]'}
"""Commands, shown as advice, that convert other files to JSON lines. In a text file each line is a prompt."""
OWN_ROWS = "for your own rows, give the path of a .jsonl, .json, .csv or .parquet file"
RowsAs = Literal["problems", "whole", "stored", "stored texts"]
"""How rows are read."""
USER_CLASS = re.compile(r"[^:]*\w(\.py)?:[A-Za-z_]\w*")
"""The name of a class in a user's file: `my_file:Mine`, `code/my_file.py:Mine`."""


@dataclass(frozen=True, slots=True)
class DataRows(TaskSettings):
    """Data rows: a .jsonl, .json, .csv or .parquet file, a directory with files called `train`, a data set.

    A data set of the hub is `datasets:NAME[:CONFIG][@SPLIT]`. The recipe's `columns` names the columns.
    """

    source: str

    def __post_init__(self) -> None:
        check_types(self)
        if not self.source:
            raise ValueError(f"the task has no name\n{nearest('', packaged_names())}\n{OWN_ROWS}")

    @property
    def label(self) -> str:
        return self.source

    def build(
        self,
        encode: Callable[[Any], Ids],
        /,
        *,
        prompt: str = "prompt",
        answer: str = "answer",
        rows: RowsAs = "problems",
        splits_pairs: bool = False,
        number_columns: Sequence[str] = (),
    ) -> Task:
        """The rows with these columns as problems. `Usage` for a source that is none, `BadData` for unusable rows.

        Of `whole` rows the columns need not exist. `stored` ones have answers to train on in place of gold answers;
        `stored texts` may also be whole texts, which a plain template allows. With `splits_pairs` a stored preference
        pair is two prompts, each with an answer and a label, and other rows must have a label. Columns in
        `number_columns` are numbers.
        """
        if not is_source(self.source):
            raise no_source(self.source)
        if rows in ("problems", "whole"):
            return RowsTask.read(self.source, encode, prompt=prompt, answer=answer, whole_rows=rows == "whole")
        how = {"plain": rows == "stored texts", "splits_pairs": splits_pairs, "number_columns": number_columns}
        return RowsTask.split(*read_stored(self.source, encode, RowColumns(prompt, answer), **how))


def task_table(text: str, *, only_names: bool = False) -> dict[str, Any]:
    """The table for which a task's text is short. With `only_names`, another text than a name counts as a `kind`.

    Packaged names win over folders. Raises `Usage` for a name with a source, as in `gsm8k:PATH`.

    >>> task_table("big_sums"), task_table("gsm8k")
    ({'kind': 'BigSums'}, {'kind': 'PublishedSet', 'name': 'gsm8k'})
    >>> task_table("rows.jsonl"), task_table("my_file:Mine")
    ({'kind': 'DataRows', 'source': 'rows.jsonl'}, {'kind': 'my_file:Mine'})
    """
    if class_name(text) in part_names()["TaskSettings"]:
        return {"kind": class_name(text)}
    if text in PRESETS:
        return {"kind": "PublishedSet", "name": text}
    name, _, rest = text.partition(":")
    if rest and name in (*PRESETS, "reasoning_gym"):
        table = f'kind = "PublishedSet", name = "{name}", source' if name in PRESETS else 'kind = "ReasoningGym", name'
        option = f"{name} --task.source" if name in PRESETS else f"{name} --task.name"
        fix = f'write a table: task = {{ {table} = "{rest}" }}\nor, on the command line: --task {option} {rest}'
        raise Usage(f"{text!r} is not how a task is written", fix=fix)
    if only_names or (USER_CLASS.fullmatch(text) and not is_source(text)):
        return {"kind": text}
    return {"kind": "DataRows", "source": text}


def named_task(text: str) -> TaskSettings:
    """The task for which a text is short, except a class in a user's file: of that, a program passes the value.

    >>> named_task("gsm8k")
    PublishedSet(name='gsm8k', source='')
    """
    kind, *arguments = task_table(text).values()
    if ":" in kind:
        fix = f"pass the value: task={kind.rpartition(':')[2]}(...)"
        raise Usage(f"{text!r} names a class in a file, which only a recipe's text may do", fix=fix)
    return part_named(kind)(*arguments)


def packaged_names() -> Sequence[str]:
    """The names of the packaged tasks and of the published sets."""
    own = {"Demonstrations", "Rows", "PublishedSet", "ReasoningGym"}
    return [*(plain_name(name) for name in part_names()["TaskSettings"] if name not in own), *PRESETS]


def no_source(text: str) -> Usage:
    """The error for a text that is neither the name of a task nor a source of rows."""
    if (path := Path(text)).is_file():
        code = CONVERSIONS.get(path.suffix, CONVERSIONS[".txt"])
        convert = f"{shlex.join(['python', '-c', code, path.name])} > {shlex.quote(path.stem + '.jsonl')}"
        what = f"{text} is a file of a type that is not read: data rows are .jsonl, .json, .csv or .parquet"
        return Usage(what, fix=f"convert it in its folder:\n{convert}")
    if Path(f"{text}.jsonl").is_file():
        return Usage(f"no task is called {text!r}", fix=f"write {text}.jsonl\n{OWN_ROWS}")
    if os.path.exists(text):  # a directory is a source of rows
        return Usage(f"{text} is neither a regular file nor a directory", fix=OWN_ROWS)
    if looks_like_path(text):
        return Usage(f"there is no file or directory {text}", fix=or_near(text, OWN_ROWS))
    return Usage(f"no task is called {text!r}", fix=f"{nearest(text, packaged_names())}\n{OWN_ROWS}")


def nearest(name: str, known: Any) -> str:
    """The advice for an unknown name: the nearest known name, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"take {' or '.join(known)}"
