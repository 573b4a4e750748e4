"""Runs the files and commands of each page in an empty directory, exactly as written."""

import json
import re
from dataclasses import dataclass
from functools import cache
from os.path import normpath
from pathlib import Path

import pytest
from tools.method_pages import method_page, page_of
from tools.sockets_page import TABLE, parts_page

from groupwise.config import registry
from groupwise.config.registry import fitting_names
from groupwise.core import part_names
from groupwise.methods.families import method_files
from tests.docs.warm_shell import run
from tests.sandbox.boxes import needed

ROOMS_OF_PARTS = ("rewards", "advantages", "objective")
HOME = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the name of the file to write (or ""), its text."""

    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    matches = BLOCK.finditer((HOME / page).read_text())
    return [Block(*(group or "" for group in match.groups())) for match in matches]


def follow(page: str, where: Path) -> list[str]:
    """Write the files of a page, run its commands in order, and compare the output of `console` blocks.

    Returns the commands.
    """
    commands = []
    for block in blocks(page):
        if block.file:
            (where / block.file).write_text(block.text)
        elif block.language == "sh":
            for line in block.text.splitlines():
                commands.append(line)
                run(line, where)
        elif block.language == "console":
            first, _, output = block.text.partition("\n")
            assert first.startswith("$ ")
            commands.append(first[2:])
            assert run(first[2:], where) == output
    return commands


def test_add_a_method_runs(tmp_path: Path) -> None:
    commands = follow("docs/add-a-method.md", tmp_path)
    assert len(commands) == 10
    assert sum(line.startswith("groupwise train") for line in commands) == 3
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 3


SLOW_PAGES = ("cluster", "flow")
ROOM_PAGES = ("values", "models", "parts", "rollout", "learner", "runs", "whatif")


@pytest.mark.parametrize("page", [*ROOM_PAGES, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW_PAGES)])
def test_the_page_of_a_room_runs(page: str, tmp_path: Path) -> None:
    if page == "flow":
        pytest.importorskip("diffusers", reason="pipelines need diffusers: pip install 'groupwise[diffusion]'")
    assert follow(f"docs/{page}.md", tmp_path)


def test_the_page_of_pictures_runs(tmp_path: Path) -> None:
    assert len(follow("docs/pictures.md", tmp_path)) == 7
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 3


def test_the_page_of_stored_answers_runs(tmp_path: Path) -> None:
    assert len(follow("docs/stored.md", tmp_path)) == 6
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 3


def test_the_page_of_reward_models_runs(tmp_path: Path) -> None:
    assert len(follow("docs/reward-models.md", tmp_path)) == 2
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 2


def test_the_table_of_parts_lists_every_part() -> None:
    rows = re.findall(r"^\| \w+ \| (\w+) \|[^|]*\| (.*) \|$", (HOME / "docs/parts.md").read_text(), re.M)
    homes = {
        socket: {registry.definition_of(registry.parts()[name]).__module__.split(".")[1] for name in names}
        for socket, names in part_names().items()
    }
    assert {socket for socket, _ in rows[1:]} == {s for s, rooms in homes.items() if rooms & set(ROOMS_OF_PARTS)}
    for socket, names in rows[1:]:
        assert re.findall(r"`(\w+)`", names) == [*fitting_names(registry.parts()[socket])], "run: make docs"
    assert parts_page() == TABLE.read_text("utf-8")


def test_every_room_has_a_page() -> None:
    table = (HOME / "docs/anatomy.md").read_text().partition("| room | subject | page |")[2].partition("\n\n")[0]
    named = {room for line in table.splitlines() for room in re.findall(r"`(\w+)`", line)}
    rooms = {p.name for p in (HOME / "src" / "groupwise").iterdir() if (p / "__init__.py").is_file()}
    assert named == rooms


def test_evaluation_runs(tmp_path: Path) -> None:
    commands = [line.split()[1] for line in follow("docs/evaluation.md", tmp_path)]
    assert commands == ["train", "eval", "eval", "compare", "eval", "check"]
    assert [*json.loads((tmp_path / "by-level.json").read_text())["results"][0]["by"]] == ["level=1", "level=2"]
    assert (tmp_path / "before.json").is_file() and len(list(tmp_path.glob("runs/short-*/evaluations/*.json"))) == 1


def test_turns_runs(tmp_path: Path) -> None:
    train, sample = follow("docs/turns.md", tmp_path)
    (run,) = tmp_path.glob("runs/*")
    assert (
        train.startswith("groupwise train")
        and sample.startswith("groupwise sample")
        and (run / "report.html").is_file()
    )
    (last, *_) = sorted(run.glob("samples/*.jsonl"), reverse=True)
    texts = [json.loads(line)["text"] for line in last.read_text().splitlines()]
    assert any("#" in text for text in texts) and list((run / "replay").iterdir())
    metrics = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["counts/illegal"] > 0 and metrics["turns/mean"] > 1 and "eval/turns/mean" in metrics


def test_families_runs(tmp_path: Path) -> None:
    assert len(follow("docs/families.md", tmp_path)) == 5
    trained = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/model/config.json")]
    assert sorted(config["model_type"] for config in trained) == ["gemma2", "qwen3_moe"]


def test_the_clip_has_twelve_lines() -> None:
    (clip,) = [b for b in blocks("docs/add-a-method.md") if b.file == "my_clip.py"]
    assert len([line for line in clip.text.splitlines() if line.strip()]) == 12


PAGES = sorted(
    str(p.relative_to(HOME)) for p in (HOME / "README.md", HOME / "tests" / "README.md", *HOME.glob("docs/**/*.md"))
)
METHOD_PAGES = sorted(page_of(name) for name in method_files())


@cache
def text_of(page: str) -> str:
    """The text of a page of the repository, or of the page of a method, which only the site has."""
    return (HOME / page).read_text() if (HOME / page).is_file() else method_page(Path(page).stem)


@pytest.mark.parametrize("page", [*PAGES, *METHOD_PAGES])
def test_links_have_a_target(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", text_of(page))
    local = [normpath(Path(page).parent / t) for t in targets if "://" not in t]
    later = {"docs/curve.svg", "benchmarks/SEEDS.md", *METHOD_PAGES}
    assert [path for path in local if not (HOME / path).exists() and path not in later] == []


@pytest.mark.parametrize("page", [*PAGES, *METHOD_PAGES])
def test_paths_in_code_spans_exist(page: str) -> None:
    """Paths are relative to the repository, to `src` or to the package. The table of renamed files is left out."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- files -->.*?<!-- /files -->", "", text, flags=re.DOTALL)
    paths = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|toml|js))`", text)
    roots = (HOME, HOME / "src", HOME / "src" / "groupwise", (HOME / page).parent)
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_pages_that_code_names_exist() -> None:
    folders = ("src", "tools", "studies", "benchmarks", "examples", "recipes")
    files = [path for folder in folders for path in (HOME / folder).rglob("*.*") if path.suffix in (".py", ".toml")]
    named = {page for path in files for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text())}
    assert len(named) > 20 and {page for page in named if not (HOME / page).is_file()} <= {"docs/methods/NAME.md"}


def test_warm_start_runs(tmp_path: Path) -> None:
    commands = follow("docs/warm_start.md", tmp_path)
    words = [line.split() for line in commands]
    assert [second for _, second, *_ in words] == ["check", "train", "report", "-E", "check", "check"]
    assert len(list(tmp_path.glob("runs/*/warm_start/metrics.jsonl"))) == 1


def test_phases_run(tmp_path: Path) -> None:
    commands = follow("docs/phases.md", tmp_path)
    assert [line.split()[1] for line in commands] == ["check", "train", "resume", "eval", "diff", "check"]
    (run,) = tmp_path.glob("runs/two-*")
    assert [(run / name / "model").is_dir() for name in ("1-search", "2-sharpen")] == [True, True]


def test_lora_runs(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    commands = follow("docs/lora.md", tmp_path)
    assert [line.split()[1] for line in commands] == ["train", "eval", "sample", "merge", "eval"]
    assert (tmp_path / "merged" / "model.safetensors").is_file()


def test_plan_runs(tmp_path: Path) -> None:
    """The plans of published settings, their picture, and the nearest recipe of one that does not fit."""
    (tmp_path / "recipes").symlink_to(HOME / "recipes")
    assert len(follow("docs/plan.md", tmp_path)) == 6
    assert (tmp_path / "plan.svg").read_text() == (HOME / "docs" / "plan.svg").read_text()


def test_small_tasks_checks(tmp_path: Path) -> None:
    """Checks the recipes of the page; their runs take minutes."""
    assert all(command.startswith("groupwise check") for command in follow("docs/small-tasks.md", tmp_path))


def test_laptop_checks(tmp_path: Path) -> None:
    """Only checks the recipes: their runs take minutes, and other tests run short ones."""
    needed()
    commands = [line for b in blocks("docs/laptop.md") if b.language == "sh" for line in b.text.splitlines()]
    (tmp_path / "recipes").symlink_to(HOME / "recipes")
    for name, check, train in zip(("programs", "big_sums"), commands[::2], commands[1::2], strict=True):
        assert f"recipes/{name}.toml: ok" in run(check, tmp_path)
        assert train == check.replace("check", "train")
