"""Dataclasses as columns: every field of a sample comes back bit for bit, and other columns are refused."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from groupwise.data import AgentMessage, AgentRequest, Finish, Outcome, Sample, Verdict
from groupwise.data.binary_columns import compact, expanded, from_columns, to_columns

TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
NUMBER = st.floats() | st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), float("nan"), -0.25])
ID = st.sampled_from([0, 1, 300, 70_000, 2**31, -3]) | st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(ID, max_size=4).map(tuple)
BYTES = st.binary(max_size=5)
CALLS = st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple)
MESSAGES = st.lists(st.tuples(TEXT, TEXT, CALLS), max_size=2)
VERDICTS = st.tuples(
    st.sampled_from(Outcome), st.none() | NUMBER, st.dictionaries(TEXT, NUMBER, max_size=2), TEXT, TEXT,
    st.none() | TEXT, st.dictionaries(TEXT, st.lists(st.tuples(ID, NUMBER), max_size=2).map(tuple), max_size=2),
)  # fmt: skip


def several(elements: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=most).map(tuple)


def samples_of(n: int) -> st.SearchStrategy[dict[str, Any]]:
    """The fields of samples of n tokens, with any value in every field, for `built`."""
    exactly = {"min_size": n, "max_size": n}
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "context": IDS, "stream": IDS, "limit": ID, "tokens": st.lists(ID, **exactly).map(tuple),
        "origin": st.lists(ID, **exactly).map(tuple), "logp": st.lists(NUMBER, **exactly).map(tuple),
        "routes": several(BYTES, 3), "actions": several(BYTES, n),
        "top_logprobs": several(several(st.tuples(ID, NUMBER), 2), n), "finish": st.none() | st.sampled_from(Finish),
        "text": TEXT, "token_ends": IDS, "group": ID, "role": TEXT, "parent": st.none() | ID,
        "verdict": st.none() | VERDICTS, "content_hash": TEXT,
        "prompt_views": st.dictionaries(TEXT.filter(bool), IDS.filter(bool), max_size=2),
        "view_hashes": st.dictionaries(TEXT, TEXT, max_size=2),
        "token_marks": st.dictionaries(TEXT, several(NUMBER, n), max_size=2),
        "counts": st.dictionaries(TEXT, NUMBER, max_size=2),
        "requests": st.lists(st.tuples(ID, MESSAGES, ID, ID, ID, CALLS, st.none() | ID), max_size=2),
    }  # fmt: skip
    assert drawn.keys() == {f.name for f in fields(Sample)}, "each field of a sample arrives"
    return st.fixed_dictionaries(drawn)


def built(drawn: dict[str, Any]) -> Sample:
    """The sample of drawn fields. Strategies build no dataclass: the checks of annotations use `random`."""
    requests = (
        AgentRequest(number, tuple(AgentMessage(*m) for m in messages), *rest)
        for number, messages, *rest in drawn["requests"]
    )
    verdict = None if drawn["verdict"] is None else Verdict(*drawn["verdict"])
    return Sample(**drawn | {"requests": tuple(requests), "verdict": verdict})


SAMPLES = st.lists(st.one_of(*map(samples_of, range(4))), max_size=4)


@settings(max_examples=40, deadline=None)
@given(SAMPLES)
def test_every_field_of_a_sample_comes_back(drawn: list[dict[str, Any]]) -> None:
    samples = [built(each) for each in drawn]
    content = save(compact(to_columns(Sample, samples, "s")))
    assert repr(from_columns(Sample, expanded(load(content)), "s")) == repr(samples)  # NaN is not equal to itself


def test_columns_keep_the_bits_of_nan_and_zero() -> None:
    x = torch.tensor([float("nan"), -0.0, 0.0, float("-inf")], dtype=torch.float64)
    for column in (x, x[1:3], x[:1].repeat(4), x[1:2].repeat(3), x.float(), x.bfloat16()):
        again = expanded(load(save(compact({"x": column}))))["x"]
        assert again.dtype == column.dtype
        assert torch.equal(again.view(torch.uint8), column.contiguous().view(torch.uint8))


def test_equal_prompts_are_sent_once_and_repeated_numbers_are_one() -> None:
    prompt = tuple(range(100, 200))
    one, eight = (
        save(compact(to_columns(Sample, [Sample(context=prompt, stream=(i,)) for i in range(n)], "s"))) for n in (1, 8)
    )
    assert len(eight) < len(one) + 300


SAMPLE = Sample(
    context=(5, 6), stream=(0, 2), limit=9, tokens=(7, 8), origin=(3, -1), logp=(-0.1, -0.5), routes=(b"\x00\xff", b""),
    actions=(b"a",), top_logprobs=(((7, -0.1), (8, -2.5)),), finish=Finish.length, text="é", token_ends=(1, 2),
    parent=0, verdict=Verdict(Outcome.scored, 0.25, {"style": 0.5}, step_scores={"line": ((1, 0.5),)}),
    prompt_views={"hint": (1, 2)}, token_marks={"line": (0.5,)}, counts={"calls": 2.0},
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(to_columns(Sample, [SAMPLE, SAMPLE], "s")))
def test_columns_that_do_not_fit_together_are_refused(name: str) -> None:
    columns = to_columns(Sample, [SAMPLE, SAMPLE], "s")
    x = columns[name]
    changes = [torch.cat([x, x.new_ones(1)]), x.to(torch.float16)]
    if len(x) and name.endswith((".length", ".row", "finish.given", "outcome")):
        changes.append(-x - 1)
    for change in changes:
        with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
            from_columns(Sample, columns | {name: change}, "s")
    with pytest.raises(KeyError):
        from_columns(Sample, {key: x for key, x in columns.items() if key != name}, "s")


def test_types_without_columns_are_refused() -> None:
    with pytest.raises(TypeError, match="have no columns"):
        to_columns(dict, [{}], "x")
