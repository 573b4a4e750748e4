"""The verifier of pictures with two patches: its four verdicts, its parts, and the packaged model's data."""

from typing import Any

import numpy as np
import pytest
import torch
from tools.flow_models import glyph_pictures

from groupwise.core import BadData, Usage
from groupwise.data import Finish, Outcome, Verdict
from groupwise.tasks import GLYPH_COLOURS, GLYPH_RELATIONS, named_task
from groupwise.tasks.glyphs import glyph_split
from tests.verifiers.built import built, verdict_of_picture


def painted(**places: str) -> np.ndarray:
    """A dark picture with patches, such as p00="red": row 0, column 0."""
    picture = -np.ones((3, 8, 8), np.float32)
    for name, colour in places.items():
        row, column = 4 * int(name[1]), 4 * int(name[2])
        channels = (1, 1, 1) if colour == "white" else GLYPH_COLOURS[colour]
        picture[:, row : row + 4, column : column + 4] = (2 * np.array(channels) - 1)[:, None, None]
    return picture


def verdict(picture: Any, problem: str = "red left blue", name: Any = "glyph_patches", **how: Any) -> Verdict:
    return verdict_of_picture(picture, problem, name, **how)


@pytest.mark.parametrize(
    ("places", "count", "colours", "position"),
    [
        ({"p00": "red", "p01": "blue"}, 1, 1, 1),
        ({"p10": "red", "p01": "blue"}, 1, 1, 1),
        ({"p00": "blue", "p01": "red"}, 1, 1, 0),
        ({"p00": "red", "p10": "blue"}, 1, 1, 0),
        ({"p00": "red", "p01": "blue", "p11": "blue"}, 0, 1, 1),
        ({"p00": "red", "p01": "blue", "p11": "green"}, 0, 0, 1),
        ({"p00": "red", "p01": "magenta"}, 1, 0, 0),
        ({"p00": "red"}, 0, 0, 0),
    ],
)
def test_parts_of_a_verdict(places: dict[str, str], count: float, colours: float, position: float) -> None:
    parts = {"count": count, "colours": colours, "position": position}
    found = verdict(painted(**places))
    assert found.subscores == parts and found.outcome is Outcome(int(min(parts.values())))
    for name, holds in parts.items():
        assert verdict(painted(**places), name={"kind": "glyph_patches", "graded_property": name}).outcome is Outcome(
            int(holds)
        )


def test_pictures_without_a_verdict_on_their_patches() -> None:
    right = painted(p00="red", p01="blue")
    assert verdict(right).answer == "red at 1 1, blue at 1 2"
    assert verdict(right + 0.9 * np.random.default_rng(0).normal(size=right.shape)).outcome is Outcome.correct
    assert verdict(painted()).outcome is verdict(painted(p00="red", p01="white")).outcome is Outcome.malformed
    assert verdict(right, finish=Finish.length).outcome is Outcome.malformed
    for broken in (right[:, :4], np.where(right > 0, np.nan, right)):
        assert verdict(broken).outcome is Outcome.unverifiable
    assert verdict(right, "red beside blue").cause == "the gold answer is not a problem such as red left blue"


def test_the_data_of_the_packaged_model_are_right() -> None:
    """Every problem has pictures that are right for it, with both values of each free coordinate."""
    words = (*GLYPH_COLOURS, *GLYPH_RELATIONS)
    training, held_out = glyph_split()
    assert len({*training, *held_out}) == 120 and (len(training), len(held_out)) == (90, 30)
    rows = torch.tensor([[words.index(word) for word in problem.split()] for problem in training[:12]])
    torch.manual_seed(0)
    pictures = [glyph_pictures(rows).numpy() for _ in range(8)]
    for i, problem in enumerate(training[:12]):
        assert all(verdict(p[i], problem).outcome is Outcome.correct for p in pictures), problem
        assert len({p[i].tobytes() for p in pictures}) > 1


def test_the_verifier_reads_other_rows_and_refuses_other_gold_answers(tmp_path: Any) -> None:
    task = named_task("glyphs").build(lambda text: (65,))
    assert task[0].row["answer"] == task[0].text
    with pytest.raises(Usage, match="is not one of"):
        built({"kind": "glyph_patches", "graded_property": "shape"}, task)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "red left blue", "answer": "red left blue"}\n{"prompt": "x", "answer": "red"}\n')
    with pytest.raises(BadData, match="a gold answer that is a problem such as red left blue"):
        built("glyph_patches", named_task(str(rows)).build(lambda text: (65,)))
