"""Uploads to the hub, with a fake in place of the network."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError

from groupwise.__main__ import main
from groupwise.core import MissingRequirement, Usage
from groupwise.models import find_model
from groupwise.models.upload import check_upload, upload
from tests.faults.small_runs import EVERY, begun


class FakeHub:
    """Records uploads. `error` is raised in place of each request."""

    def __init__(self) -> None:
        self.token: str | None = "token"
        self.error: Exception | None = None
        self.uploads: list[tuple[str, list[str]]] = []

    def get_token(self) -> str | None:
        return self.token

    def HfApi(self) -> "FakeHub":
        return self

    def whoami(self) -> None:
        if self.error:
            raise self.error

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        self.whoami()
        assert private and exist_ok
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.uploads.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr("groupwise.models.upload.hub", lambda: fake)
    return fake


def refused() -> Exception:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=403)
    return HfHubHTTPError("403 Forbidden", response=response)


def test_a_finished_run_and_an_export_are_uploaded(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = replace(EVERY, iterations=0)
    run = begun(tmp_path / "run", recipe)
    assert main(["resume", str(run), "--push", "me/sums"]) == 0
    assert "uploaded: https://hub/me/sums" in capsys.readouterr().out
    assert main(["export", str(run), str(tmp_path / "out"), "--push", "me/again"]) == 0
    names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert hub.uploads == [("me/sums", names), ("me/again", names)]


def test_errors_come_before_the_run(hub: FakeHub, home: Path) -> None:
    for name in ("sums", "me/sums@main", "../x"):
        with pytest.raises(Usage, match="is not a name on the hub"):
            check_upload(name)
    hub.error = ConnectionError("no route")
    with pytest.raises(MissingRequirement, match="cannot be reached"):
        check_upload("me/sums")
    hub.error = refused()
    with pytest.raises(MissingRequirement, match="the hub refused the upload"):
        check_upload("me/sums")
    hub.token = None
    assert main(["train", "--push", "me/sums"]) == 4
    assert list(home.iterdir()) == []


def test_a_failed_upload_names_the_command_that_repeats_it(hub: FakeHub) -> None:
    hub.error = refused()
    with pytest.raises(MissingRequirement) as error:
        upload(find_model("calculator"), "me/sums")
    assert f"hf upload me/sums {find_model('calculator')}" in error.value.fix and "403" in error.value.evidence
    assert hub.uploads == []


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingRequirement, match="uploading needs huggingface_hub"):
        check_upload("me/sums")
