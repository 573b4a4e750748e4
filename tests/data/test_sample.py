"""`Verdict.value`, the row of a prompt, the validation of `Sampling`, and requests and generations as JSON."""

import copy
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import (
    COLDEST,
    ENVIRONMENT,
    Finish,
    Generation,
    GenerationRequest,
    Outcome,
    Prompt,
    Sample,
    Sampling,
    Verdict,
)
from groupwise.data.rollout_json import from_json, to_json


@pytest.mark.parametrize(
    "fields",
    [{"stop": ("#", "")}, {"temperature": -0.1}, {"temperature": COLDEST / 2},
     {"temperature": math.nan}, {"max_tokens": 0}, {"top_p": 0.0},
     {"top_p": 1.1}, {"top_k": -1}, {"min_p": 1.0}],
)  # fmt: skip
def test_invalid_sampling_parameters_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**fields)
    assert Sampling(stop=("#",)).stop == ("#",)


@pytest.mark.parametrize(
    ("verdict", "value"),
    [
        (Verdict(Outcome.correct), 1.0),
        (Verdict(Outcome.malformed), 0.0),
        (Verdict(Outcome.wrong, 0.4), 0.4),
        (Verdict(Outcome.unverifiable, 0.7), 0.0),  # its score is ignored
    ],
)
def test_value_of_a_verdict(verdict: Verdict, value: float) -> None:
    assert verdict.value == value


def ids(least: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 2**20), min_size=least, max_size=6).map(tuple)


# Fields, not values: the runtime type checker of the constructors would draw random numbers inside a strategy.
SAMPLINGS = st.fixed_dictionaries({
    "temperature": st.just(0.0) | st.floats(COLDEST, 9), "max_tokens": st.integers(1, 9), "top_p": st.floats(0.01, 1),
    "top_k": st.integers(0, 9), "min_p": st.floats(0, 0.9),
    "stop": st.lists(st.text(min_size=1), max_size=2).map(tuple),
})  # fmt: skip
ROWS = st.lists(st.binary(max_size=4), max_size=3).map(tuple)
REQUESTS = st.fixed_dictionaries(
    {
        "context": ids(1),
        "limit": st.integers(1, 99),
        "draw_id": st.integers(0, 2**40),
        "stream": ids(1),
        "already_generated_count": st.integers(0, 9),
        "random_purpose": st.integers(0, 9),
        "content_hash": st.text(max_size=4),
        "previous_actions": ROWS,
    }
)
TOKENS = st.lists(st.tuples(st.integers(0, 9), st.floats(max_value=0, allow_nan=False), st.integers(0, 9)), max_size=5)


@given(REQUESTS, SAMPLINGS, TOKENS, st.sampled_from(Finish), ROWS, ROWS)
def test_requests_and_generations_survive_json(
    request: dict[str, Any],
    sampling: dict[str, Any],
    tokens: list[Any],
    finish: Finish,
    routes: tuple[bytes, ...],
    path: tuple[bytes, ...],
) -> None:
    ids, logp, versions = zip(*tokens) if tokens else ((), (), ())
    for value in (
        GenerationRequest(**request, sampling=Sampling(**sampling)),
        Generation(tokens=ids, logp=logp, versions=versions, finish=finish, routes=routes, actions=path),
    ):
        again = from_json(type(value), json.loads(json.dumps(to_json(value))))
        assert again == value
        assert repr(again) == repr(value)  # also tuples, not lists, and the sign of zero


def test_a_path_is_cut_with_its_tokens_and_identifies_a_context() -> None:
    sample = Sample(context=(5,), stream=(0,)).with_tokens((0, 1), (0, 0), (-1.0, -1.0), path=(b"a", b"b"))
    sample = sample.insert((9,), ENVIRONMENT).with_tokens((2,), (0,), (-1.0,), path=(b"c",))
    sample = sample.with_text("abcd", (1, 2, 3, 4))
    assert sample.actions == (b"a", b"b", b"", b"c")
    assert sample.fork(1, 0).actions == (b"a",) and sample.last_turn.actions == (b"c",)
    assert sample.last_turn.context_key == replace(sample, actions=(b"a", b"b", b"", b"x")).last_turn.context_key
    assert sample.last_turn.context_key != replace(sample, actions=(b"a", b"x", b"", b"c")).last_turn.context_key
    with pytest.raises(ValueError, match=r"5 encoded actions for 4 tokens"):
        replace(sample, actions=(b"",) * 5)
    request = GenerationRequest(
        context=(5, 0, 1), limit=1, draw_id=0, stream=(0,), already_generated_count=2, content_hash="image"
    )
    keys = [
        replace(request, previous_actions=path).context_key for path in ((), (b"a", b"b"), (b"a", b"c"), (b"ab", b""))
    ]
    assert len(set(keys)) == 4 and keys[0] == ("image", (5, 0, 1))


def test_the_row_of_a_prompt_is_read_only_and_survives_pickle_and_replace() -> None:
    columns = {"answer": 4, "level": 2}
    prompt = Prompt("p", (5, 6), "2+2=", columns, content_hash="c")
    columns["level"] = 3
    assert prompt.row == {"answer": 4, "level": 2}
    with pytest.raises(TypeError):
        prompt.row["level"] = 3  # pyright: ignore[reportIndexIssue]
    for other in (pickle.loads(pickle.dumps(prompt)), copy.deepcopy(prompt), replace(prompt)):
        assert other == prompt
        with pytest.raises(TypeError):
            other.row["level"] = 3
