"""Reads an iteration's stored samples, with log-probs, and the optimizer steps in which they were trained."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.core import BadData
from groupwise.data import Batch, Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.report.read_run import read as read_run
from groupwise.report.report import existing_run
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_info import check_format
from groupwise.runs.run_layout import SAMPLE_FILES, RunLayout, iteration_files

Lines = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Tensor]
PER_TOKEN = ("tokens", "ends", "origin", "logp_engine", "logp", "ratio")
"""The names of the columns that have one number for each token, among those that are read."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredIteration:
    """A run's iteration, read from its files in samples/: a record per sample, and numbers per token.

    `batch` holds the samples that the run trained, with the `logp` of the step that trained them and `logp_old`. Sample
    i of it is line `sample_line_indices[i]` of the file, from 0. Token t of it is entry `rows[t]` of `token_columns`.
    """

    run_directory: Path
    iteration: int
    recipe: Recipe
    method_name: str
    """The name of the published method that the recipe starts from; empty if there is none."""
    sample_records: Lines
    token_columns: Columns
    batch: Batch
    sample_line_indices: tuple[int, ...]

    @property
    def rows(self) -> Int[Tensor, " n"]:
        return self.rows_of(self.batch)

    def rows_of(self, part: Batch) -> Int[Tensor, " n"]:
        """For each token of some of the batch's samples, its index in the stored columns."""
        lengths = self.token_columns["lengths"]
        start = dict(
            zip(self.batch.sample_keys, (lengths.cumsum(0) - lengths)[list(self.sample_line_indices)].tolist())
        )
        return (
            part.sequences.spread(torch.tensor([start[key] for key in part.sample_keys], dtype=torch.long))
            + part.index_in_sample
        )


def read_iteration(run: str, iteration: int | None, use: UserCode) -> StoredIteration:
    """Read an iteration of a run; the newest one with samples by default.

    Raises `Storage` for a run of another format, `BadData` for an iteration without samples or without a trained one,
    and damaged files.
    """
    directory = existing_run(run).run_directory
    about = read_run(directory).run_info
    check_format(directory, about.get("format"))
    recipe = read_recipe(RunLayout(directory).recipe, (), use)
    iteration = chosen_iteration(directory, iteration)
    with sample_errors(directory, iteration):
        lines, columns = read_samples(directory, iteration)
        rollouts, indices = rollouts_of(lines, columns)
    trained = [r for r in rollouts if any(r.selected or ())]  # as in training: the steps depend on their number
    version = iteration - 1  # each iteration publishes one version
    batch = pack(trained, version=version, roles=recipe.method.trained_roles, max_tokens=recipe.sampling.max_tokens)
    if not len(batch):
        cause = next((str(line["dropped"]) for line in lines if line.get("dropped")), "")
        what = f"iteration {iteration} of {run} trained no sample"
        raise BadData(what, evidence=f"dropped by: {cause}" if cause else "", fix="name another one: --iteration K")
    method = about.get("method")
    stored = StoredIteration(
        run_directory=directory, iteration=iteration, recipe=recipe, sample_records=lines, token_columns=columns,
        batch=batch,
        sample_line_indices=tuple(indices[key] for key in batch.sample_keys),
        method_name=str(method.get("name", "")) if isinstance(method, dict) else "",
    )  # fmt: skip
    logp, ratio = (columns[name].double()[stored.rows] for name in ("logp", "ratio"))
    return replace(stored, batch=batch.having(logp=logp, logp_old=logp - ratio.log()))


def chosen_iteration(run: Path, iteration: int | None) -> int:
    """The iteration, if it has samples; by default the newest one that has them. `BadData` without samples."""
    stored = [i for i, _ in iteration_files(RunLayout(run).samples, SAMPLE_FILES[:1])]
    if not stored:
        raise BadData(f"{run} has no samples", fix="name a run that has finished an iteration")
    if iteration is not None and iteration not in stored:
        evidence = f"samples/ has {len(stored)} iterations, from {stored[0]} to {stored[-1]}"
        what = f"iteration {iteration} of {run} has no samples"
        raise BadData(what, evidence=evidence, fix=f"name one of them: --iteration {stored[-1]}")
    return stored[-1] if iteration is None else iteration


@contextmanager
def sample_errors(run: Path, iteration: int) -> Iterator[None]:
    """A context that turns errors of damaged sample files into `BadData`."""
    try:
        yield
    except (
        OSError,
        SafetensorError,
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        what = f"the samples of iteration {iteration} of {run} are damaged"
        fix = "restore them from a copy, or name another one: --iteration K"
        raise BadData(what, evidence=f"{type(error).__name__}: {error}", fix=fix) from error


def read_samples(run: Path, iteration: int) -> tuple[Lines, Columns]:
    """The records (one line for each sample) and the columns of an iteration. ValueError if their lengths differ."""
    text, tensors = (RunLayout(run).sample_file(iteration, suffix) for suffix in SAMPLE_FILES)
    lines, columns = read_lines(text), load_file(tensors)
    lengths = columns["lengths"].tolist()
    if lengths != [line["length"] for line in lines] or {len(columns[x]) for x in PER_TOKEN} != {sum(lengths)}:
        raise ValueError(f"{text.name} and {tensors.name} have different numbers of tokens")
    return lines, columns


def rollouts_of(lines: Lines, columns: Columns) -> tuple[list[Rollout], dict[tuple[int, Any], int]]:
    """The rollouts of an iteration, and each sample's line index by its key."""
    starts = [0, *columns["lengths"].cumsum(0).tolist()]
    contexts = [tuple(ids.tolist()) for ids in columns["contexts"].split(columns["context_lengths"].tolist())]
    indices: dict[tuple[int, Any], int] = {}
    members: dict[int, list[tuple[Mapping[str, Any], Sample]]] = {}
    for index, line in enumerate(lines):
        tokens = {name: columns[name][starts[index] : starts[index + 1]] for name in PER_TOKEN}
        context = contexts[int(columns["context"][index])]
        sample = sample_of(line, tokens, context, index)
        views = {name: contexts[i] for name, i in line.get("views", {}).items()}
        sample = replace(sample, prompt_views=views, parent=line.get("parent"))
        members.setdefault(line["draw"], []).append((line, sample))
        indices[line["draw"], sample.stream] = index
    rollouts = []
    for draw, pairs in members.items():
        line, first = pairs[0]
        prompt = Prompt(str(line["prompt_id"]), first.context, line["prompt"], {"answer": line["gold"]})
        samples = tuple(sample for _, sample in pairs)
        selected = tuple(bool(of["selected"]) and sample.verdict is not None for of, sample in pairs)
        rollouts.append(Rollout(Draw(draw, prompt, len(samples)), samples, selected, str(line["dropped"] or "")))
    return rollouts, indices


def sample_of(line: Mapping[str, Any], tokens: Columns, context: tuple[int, ...], index: int) -> Sample:
    """Create the `Sample` of a stored record. Its random stream is not needed: the line number replaces it."""
    sample = Sample(
        context=context, stream=(index,), limit=line["limit"], tokens=tuple(tokens["tokens"].tolist()),
        origin=tuple(tokens["origin"].tolist()), logp=tuple(tokens["logp_engine"].double().tolist()),
        finish=Finish[line["finish"]] if line["finish"] else None, group=line["group"], role=line["role"],
        counts=line.get("counts", {}),
    )  # fmt: skip
    sample = sample.with_text(line["text"], tuple(tokens["ends"].tolist()))
    return sample if line["outcome"] is None else sample.with_verdict(verdict_of(line))


def verdict_of(line: Mapping[str, Any]) -> Verdict:
    """The verdict of a stored sample, without the answer that the verifier read, which is not stored.

    The steps of a conversation are left out: they count from the start of its last turn.
    """
    judged = line.get("steps", {}) if line.get("turns", 1) == 1 else {}
    steps = {name: [(int(end), float(x)) for end, x in pairs] for name, pairs in judged.items()}
    return Verdict(
        Outcome[line["outcome"]], line["score"], line["subscores"], line["feedback"], line["cause"], step_scores=steps
    )  # fmt: skip


def stored_gradient(stored: StoredIteration) -> Float[Tensor, " n"] | None:
    """The gradient that the run stored for each token of the batch, with all terms of its loss; None if not stored."""
    return stored.token_columns["gradient"].double()[stored.rows] if "gradient" in stored.token_columns else None
