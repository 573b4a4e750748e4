"""The task of the claim about long answers that can be learned: its rows and its demonstrations."""

import json
import re

import pytest
from studies.tailed_sums import BASE, CLAIMS, LIMIT, SHOWN

from groupwise.certificates.studies import StudyRun
from groupwise.models import find_model, read_tokenizer
from studies import tailed_sums

STORED = {path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
          for path in tailed_sums.FOLDER.iterdir()}  # fmt: skip


def test_the_files_are_those_of_the_generator_and_share_no_problem() -> None:
    texts = {path.name: path.read_text("utf-8") for path in tailed_sums.FOLDER.iterdir()}
    assert texts == tailed_sums.files()
    sets = {name: {row["prompt"] for row in rows} for name, rows in STORED.items()}
    assert len(sets["train"]) == 512 and len(sets["test"]) == 128
    assert not sets["test"] & (sets["train"] | sets["demonstrations"])


def test_a_demonstration_decides_early_and_its_filler_goes_on_to_the_limit() -> None:
    tokenizer, recipe = read_tokenizer(find_model("hinted_sums")), StudyRun("gspo", "calculator", 1, BASE).recipe()
    assert recipe.sampling.max_tokens == LIMIT
    answers = [str(row["answer"]) for row in tailed_sums.demonstrations()]
    begun = [match[1] for answer in answers if (match := re.fullmatch(r"((?:[^#;]*;)*#-?\d+)=+", answer))]
    assert len(begun) == len(answers)
    assert max(len(tokenizer.encode(text)) for text in begun) < LIMIT / 5
    assert min(len(tokenizer.encode(answer)) for answer in answers) > LIMIT
    assert sum(";" in text for text in begun) / len(begun) == pytest.approx(SHOWN, abs=0.03)


def test_the_claim_tunes_the_bounds_of_gspo_from_those_of_its_paper_on() -> None:
    claim = CLAIMS[0]
    lows = [claim.trial(0, 1e-4, 90, bounds).recipe().method.objective.surrogate.low for bounds in claim.bounds]
    assert lows == pytest.approx([3e-4, 3e-3, 3e-2])
