"""Selects samples for the report page, encodes them compactly, and counts how often each prompt was solved."""

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from groupwise.report.episodes import SamplePlaceInEpisode, in_episodes, stored_episode
from groupwise.report.read_run import as_float, is_answer, lines
from groupwise.report.sample_pictures import picture, prompt_pictures, read_sheet
from groupwise.report.stored_comparisons import StoredComparison
from groupwise.runs.run_layout import RunLayout, iteration_files

PROMPTS, COLUMNS = 256, 240  # most rows and columns of the prompt map
CELLS = 1024  # most prompts of the map if few prompts return: each is one cell then
PER_TOKEN = ("tokens", "logp_engine", "logp", "ratio", "advantage", "share", "weight", "gradient", "clip")
ROUNDS = 16  # most iterations with rollouts on the page, besides compared ones
COMPARED = 16  # most groups of an iteration that has a comparison of methods
NONE_COMPARED: Mapping[int, StoredComparison] = MappingProxyType({})


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(array: np.ndarray) -> list | dict | str:
    """Encode numbers without rounding: value and count if all are equal, else a JSON list or base64 if shorter.

    >>> packed(np.array([2, 2, 2])), packed(np.array([1, np.nan]))
    ({'n': 3, 'v': 2}, [1.0, None])
    """
    if len(array) and (array == array[0]).all():
        return {"n": len(array), "v": array[0].item()}
    if array.dtype.kind in "iu":
        kinds = {"u1": (0, 2**8), "u2": (0, 2**16), "i4": (-(2**31), 2**31), "f8": (-(2**53), 2**53)}
        least, most = (array.min(), array.max()) if len(array) else (0, 0)
        kind = next((k for k, (low, high) in kinds.items() if low <= least <= most < high), "f8")
    else:
        kind = "f4" if array.dtype == np.float32 else "f8"
    plain = [None if isinstance(x, float) and not math.isfinite(x) else x for x in array.tolist()]
    coded = f"{kind}:{b64encode(np.ascontiguousarray(array, '<' + kind).tobytes()).decode()}"
    return plain if len(json.dumps(plain, separators=(",", ":"))) <= len(coded) + 2 else coded


def steps(array: np.ndarray) -> list | dict | str:
    """Encode an ascending array of integers as packed differences, starting from 0."""
    return packed(np.diff(array, prepend=0))


def files(layout: RunLayout) -> dict[int, Path]:
    """The run's sample files by iteration, ascending."""
    return dict(iteration_files(layout.samples, (".jsonl",)))


def evenly(items: list, most: int) -> list:
    """At most `most` of the items, evenly spread, with the first and the last.

    >>> evenly(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]


def scan(layout: RunLayout) -> tuple[dict[int, list], dict[str, dict[int, list[int]]], dict[str, str]]:
    """Read all sample files: groups by iteration; [right, graded] answers by prompt and iteration; prompts' texts."""
    groups: dict[int, list] = {}
    tally: dict[str, dict[int, list[int]]] = {}
    texts: dict[str, str] = {}
    for iteration, path in files(layout).items():
        keys = {}
        for row in lines(path):
            keys[_key(row)] = None
            prompt, outcome = str(row.get("prompt_id")), row.get("outcome")
            texts.setdefault(prompt, str(row.get("prompt", prompt))[:160])
            if is_answer(row) and outcome in ("correct", "wrong", "malformed"):
                cell = tally.setdefault(prompt, {}).setdefault(iteration, [0, 0])
                cell[0] += outcome == "correct"
                cell[1] += 1
        if keys:
            groups[iteration] = list(keys)
    return groups, tally, texts


def choose(
    layout: RunLayout,
    groups: dict[int, list],
    *,
    most: int,
    budget: int,
    compared: Mapping[int, StoredComparison] = NONE_COMPARED,
) -> tuple[list[dict], int]:
    """Choose up to `most` groups, spread over iterations, that fit in `budget` bytes of JSON. Also returns their bytes.

    Iterations and groups are chosen by position, never by content; `compared` iterations are added. The page
    shows how many are left out.
    """
    rounds = evenly(list(groups), min(ROUNDS, most))
    per_round = max(most // max(len(rounds), 1), 1)
    rounds = sorted({*rounds, *(compared.keys() & groups.keys())})
    first = {*compared, *rounds[:1], *rounds[-1:]}
    order = sorted(rounds, key=lambda i: (i not in first, i))
    chosen: list[dict] = []
    used = 0
    sizes = {i: max(per_round, COMPARED) if i in compared else per_round for i in order}
    loaded = {
        i: _groups(layout, i, evenly(groups[i], sizes[i]), limit=budget // 48, comparison=compared.get(i))
        for i in order
    }
    for rank in range(max(sizes.values(), default=0)):
        for i in order:
            free = (budget - used) // 2 if used else budget  # half, so that one group cannot use all of it
            if rank < len(loaded[i]) and (group := _fit(loaded[i][rank], free)) is not None:
                chosen.append(group)
                used += len(as_json(group)) + 1
    return sorted(chosen, key=lambda g: (g["iteration"], groups[g["iteration"]].index((g["draw"], g["group"])))), used


def prompt_map(tally: dict[str, dict[int, list[int]]], texts: dict[str, str], *, runs: int = 1) -> dict[str, Any]:
    """The pass rates for the page's map: a row per prompt, a column per bucket of iterations, sorted by first solve.

    A prompt is solved in an iteration if at least half of its answers are right. The maps of `runs` runs on one page
    have as many rows as the map of a single one.
    """
    if not tally:
        return {"of": 0, "rows": []}
    last = max(i for cells in tally.values() for i in cells)
    width = math.ceil((last + 1) / COLUMNS)
    once = sum(len(cells) > 1 for cells in tally.values()) <= len(tally) // 10
    chosen = most_visited(tally, max((CELLS if once else PROMPTS) // runs, 1))
    rows = [_prompt_row(p, texts[p], tally[p], width) for p in chosen]
    rows.sort(key=lambda r: (r["solved"] is None, r["solved"] or 0))
    return {"once": once, "of": len(tally), "width": width, "columns": last // width + 1, "last": last, "rows": rows}


def most_visited(tally: dict[str, dict[int, list[int]]], most: int) -> list[str]:
    """The `most` prompts that were sampled in the most iterations; among equal ones, evenly from first to last."""
    visits = {prompt: len(cells) for prompt, cells in tally.items()}
    least = sorted(visits.values(), reverse=True)[:most][-1]
    frequent = [p for p in visits if visits[p] > least]
    return frequent + evenly([p for p in visits if visits[p] == least], most - len(frequent))


def _prompt_row(prompt: str, text: str, visits: dict[int, list[int]], width: int) -> dict[str, Any]:
    right = {i: 2 * r >= n for i, (r, n) in visits.items()}
    cells: dict[int, list[int]] = {}
    for i, (r, n) in visits.items():
        cell = cells.setdefault(i // width, [0, 0])
        cell[0], cell[1] = cell[0] + r, cell[1] + n
    return {
        "id": prompt[:160],
        "text": text,
        "cells": [x for column, (r, n) in sorted(cells.items()) for x in (column, r, n)],
        "solved": min((i for i, ok in right.items() if ok), default=None),
        "last": max(visits),
        "visits": len(visits),
        "now": right[max(visits)],
    }


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row.get("draw")), str(row.get("group"))


def _groups(
    layout: RunLayout, iteration: int, keys: list, *, limit: int, comparison: StoredComparison | None
) -> list[dict[str, Any]]:
    """Read these groups of an iteration, in order, for the page. Answers are cut to `limit` tokens."""
    path = files(layout)[iteration]
    rows = list(lines(path))
    try:
        arrays = load_file(path.with_suffix(".safetensors"))
    except Exception:  # damaged or missing: the page shows the text only, with a note
        arrays = {}
    pictures = read_sheet(path)
    lengths = arrays.get("lengths", np.zeros(0, np.int64))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    by_key: dict[tuple[str, str], dict[str, Any]] = {}
    samples: dict[tuple[str, str], list[tuple[dict[str, Any], SamplePlaceInEpisode | None]]] = {}
    of_draw: Counter[str] = Counter()
    for i, row in enumerate(rows):
        index = of_draw[_key(row)[0]]
        of_draw[_key(row)[0]] += 1
        if _key(row) not in keys:
            continue
        group = by_key.setdefault(
            _key(row),
            {
                "iteration": iteration,
                "draw": _key(row)[0],
                "group": _key(row)[1],
                "prompt_id": str(row.get("prompt_id"))[:160],
                "prompt": str(row.get("prompt", ""))[:20000],
                "gold": _text(row.get("gold")),
                "of": 0,
                "samples": [],
                **prompt_pictures(row, pictures),
            },
        )
        group["of"] += 1
        tokens = slice(int(starts[i]), int(starts[i + 1])) if i < len(lengths) else None
        sample = {"line": i + 1} | _sample(row, arrays, tokens, limit) | picture(row, pictures)
        if comparison and i + 1 in comparison.numbers_by_sample:
            sample["compared"] = comparison.numbers_by_sample[i + 1]
            group.setdefault("cosines", comparison.group_cosines_by_sample[i + 1])
        samples.setdefault(_key(row), []).append((sample, stored_episode(row, index)))
    for key, group in by_key.items():
        group["samples"] = in_episodes(samples[key])
    return [by_key[key] for key in keys if key in by_key]


def _sample(row: dict[str, Any], arrays: dict[str, np.ndarray], tokens: slice | None, limit: int) -> dict[str, Any]:
    text = str(row.get("text", ""))
    excerpt = text[: limit * 4]
    sample: dict[str, Any] = {"text": excerpt, "cut": len(excerpt) < len(text)}
    for name in ("role", "finish", "outcome", "feedback", "cause", "dropped", "sampled_from"):
        sample[name] = _text(row.get(name))
    for name in ("score", "reward", "advantage", "length"):
        x = as_float(row.get(name))
        sample[name] = None if math.isnan(x) else x
    sample["selected"] = row.get("selected", True) is not False
    parts = row.get("subscores")
    sample["subscores"] = (
        {str(k)[:80]: _text(v) for k, v in list(parts.items())[:12]} if isinstance(parts, dict) else {}
    )
    if tokens is None or "ends" not in arrays:
        return sample
    ends = np.clip(np.maximum.accumulate(arrays["ends"][tokens].astype(np.int64)), 0, len(text))
    n = min(len(ends), limit, int(np.searchsorted(ends, len(excerpt), "right")))
    sample["tokens_of"] = len(ends)
    if n < len(ends):
        sample |= {"text": text[: ends[n - 1] if n else 0], "cut": True}
    sample["ends"] = steps(_utf16(sample["text"])[ends[:n]])
    for name in PER_TOKEN:
        if name in arrays:
            sample["token_advantage" if name == "advantage" else name] = packed(arrays[name][tokens][:n])
    if (
        "origin" in arrays and (arrays["origin"][tokens][:n] < 0).any()
    ):  # a conversation: some tokens are not the model's
        sample["origin"] = packed(arrays["origin"][tokens][:n])
    return sample


def _utf16(text: str) -> np.ndarray:
    """The offset of each character in UTF-16 units, as browsers count; the last entry is the end.

    >>> _utf16("a😀b").tolist()
    [0, 1, 3, 4]
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF))])


def _fit(group: dict[str, Any], budget: int) -> dict[str, Any] | None:
    """Cut a group to as many of its samples as fit into `budget` bytes; None if none fits."""
    samples: Iterable[dict[str, Any]] = group["samples"]
    budget -= len(as_json(group | {"samples": []}))
    fitting = []
    for sample in samples:
        budget -= len(as_json(sample)) + 1
        if budget < 0:
            break
        fitting.append(sample)
    return group | {"samples": fitting} if fitting else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value if value is None else value[:2000]
    return json.dumps(value, ensure_ascii=False)[:2000]
