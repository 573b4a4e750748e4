"""The task of the claims about long answers: its rows and its demonstrations."""

import json
import re

import pytest
from studies.long_answers import BASE

from groupwise.certificates.studies import StudyRun
from groupwise.models import find_model, read_tokenizer
from studies import long_sums

STORED = {path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
          for path in long_sums.FOLDER.iterdir()}  # fmt: skip


def test_the_files_are_those_of_the_generator_and_share_no_problem() -> None:
    texts = {path.name: path.read_text("utf-8") for path in long_sums.FOLDER.iterdir()}
    assert texts == long_sums.files()
    sets = {name: {row["prompt"] for row in rows} for name, rows in STORED.items()}
    assert len(sets["train"]) == 512 and len(sets["test"]) == 128 and len(STORED["demonstrations"]) == 512
    assert not sets["test"] & (sets["train"] | sets["demonstrations"])


def test_an_answer_is_decided_at_its_first_result_and_then_has_a_long_filler() -> None:
    tokenizer, recipe = read_tokenizer(find_model("calculator")), StudyRun("gspo", "calculator", 1, BASE).recipe()
    lengths = [len(tokenizer.encode(row["answer"])) for row in STORED["demonstrations"]]
    assert min(lengths) >= 256 and max(lengths) < recipe.sampling.max_tokens and sum(lengths) / len(lengths) > 280
    steps = 0
    for row in STORED["demonstrations"]:
        begun, filler = re.fullmatch(r"((?:[^#;]*;)*#\d+)(\D.*)", row["answer"]).groups()  # type: ignore[union-attr]
        assert re.fullmatch("".join(rf"[-+*=]{{26,34}}{mark}" for mark in range(1, 10)), filler)
        steps += ";" in begun
    assert steps / len(lengths) == pytest.approx(long_sums.SHOWN, abs=0.07)
    for row in STORED["test"][:20]:
        value = int(row["prompt"][0])
        for sign, operand in zip(row["prompt"][1:-1:2], row["prompt"][2:-1:2], strict=True):
            value = eval(f"{value}{sign}{operand}")
        for text, right in (
            (f"1+1=2;#{value}=*1", True),
            (f"#{value}1=#{value}", False),
            (f"#9{value}=#{value}", False),
        ):
            assert bool(re.fullmatch(row["answer"], text)) is right
