"""Each claim of docs/gpu.md about the work on a GPU says whether it was counted, tested, measured, or not."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
MARKS = re.compile(
    r"\*(counted|tested\s+on\s+the\s+pretended\s+GPU|not\s+measured|not\s+run|measured\s+on\s[^*]+)\*", re.I
)
MARKED = ("The learner", "Recipes", "vLLM", "Flow and masked policies")
"""Sections of which each paragraph, and each item of a list, has a mark."""


@pytest.mark.parametrize("section", MARKED)
def test_each_claim_has_a_mark(section: str) -> None:
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    claims = [claim for block in text.strip().split("\n\n") for claim in re.split(r"\n(?=- )", block)]
    assert claims and [claim for claim in claims if not MARKS.search(claim)] == []
