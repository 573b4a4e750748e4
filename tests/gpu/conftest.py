"""Tests on a real CUDA device: `make test-gpu`. Without one they skip with the reason."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine: not run"))


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", 0)
