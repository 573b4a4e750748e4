"""Shapes and types are checked in tests only: every annotation of the package is enforced here."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

gc.disable()  # until all tests are collected: it would walk a million objects again and again, and find no garbage
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles every test and module again
sys.dont_write_bytecode = False

from tests import checked  # noqa: E402

checked.install()

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import Phase, settings  # noqa: E402

settings.register_profile("quiet", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("quiet")
settings.register_profile("unshrunk", settings.get_profile("quiet"), phases=[Phase.explicit, Phase.generate])
"""For `tools.breaks`: a test that fails does not search for its smallest example, which takes minutes."""
torch.set_num_threads(1)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]


def pytest_configure(config: pytest.Config) -> None:
    """The workers of pytest-xdist share one warm shell."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from tests.docs import warm_shell

        warm_shell.share()


def pytest_collection_finish() -> None:
    """The garbage collector leaves out what imports and the collection made."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def annotations_are_checked() -> None:
    checked.begin_test()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package bitsandbytes; where it is not installed, the pretended one."""
    from groupwise.models import quantized_linear  # late: `tools.breaks` imports this file before it changes others
    from tests import pretended_bitsandbytes

    if find_spec("bitsandbytes") is None:
        pretended = SimpleNamespace(import_module=lambda name: pretended_bitsandbytes)
        monkeypatch.setattr(quantized_linear, "importlib", pretended)
    quantized_linear.load_bitsandbytes.cache_clear()
    yield
    quantized_linear.load_bitsandbytes.cache_clear()


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP ends the programs of a test, also under `nohup`: they would inherit that it is ignored, but no handler."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, of one test file: while it runs, its loop blocks `asyncio.run` in other files."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium: a page is tested nowhere else")
        pytest.skip("no Chromium on this machine: a page is not tested")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        chromium = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
