"""Tests on a real CUDA device: `make test-gpu`. Without one they skip with the reason.

What they measure is written to benchmarks/GPU.md at the end of the session.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
PAGE_OF_FIGURES = HERE.parents[1] / "benchmarks" / "GPU.md"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine: not run"))


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def figures() -> Iterator[list[str]]:
    """Paragraphs and tables of the page of figures, in the order of the tests."""
    found: list[str] = []
    yield found
    if found:
        device = f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"
        head = ["# Measurements on a GPU", f"`make test-gpu` on one {device}."]
        PAGE_OF_FIGURES.write_text("\n\n".join([*head, *found]) + "\n")
