"""What the first page says is so: what is printed, which rooms there are, what a run leaves, whence its numbers."""

import inspect
import re
from pathlib import Path

from groupwise.commands.show import show_diff
from groupwise.methods import gspo
from tests.docs.test_pages import HOME, blocks, run

PAGE = (HOME / "README.md").read_text()


def block_after(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("```\n")[2].partition("```")[0]


def test_what_is_printed() -> None:
    (console,) = [b for b in blocks("README.md") if b.language == "console"]
    assert console.text == f"$ groupwise diff grpo dapo\n{show_diff('grpo', 'dapo')}\n"
    assert len(console.text.splitlines()) <= 11
    said = re.search(r"`groupwise diff grpo gspo` says `(.*?)`", PAGE)
    assert said and said[1] in show_diff("grpo", "gspo").splitlines()


def test_the_method_is_the_one_in_the_package() -> None:
    (python,) = [b for b in blocks("README.md") if b.language == "python"]
    assert python.text == inspect.getsource(inspect.unwrap(gspo))


def test_the_rooms_are_those_on_disk() -> None:
    package = HOME / "src" / "groupwise"
    told = re.findall(r"^  (\w+)/ ", block_after("The rooms"), re.M)
    assert sorted(told) == sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file())
    for name in re.findall(r"^(\w+)/ ", block_after("The rooms"), re.M):
        assert (HOME / name).is_dir()


def test_own_problems_as_written_leave_what_is_said(tmp_path: Path) -> None:
    (command,) = [b.text.strip() for b in blocks("README.md") if b.language == "sh"]
    rows = [f'{{"prompt": "{a}+{b}=", "answer": {a + b}}}' for a in range(1, 5) for b in range(2, 6)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    run(f"{command} --iterations 1 --prompts 4", tmp_path)
    (left,) = (tmp_path / "runs").iterdir()
    told = re.findall(r"^  ([\w.]+)/? ", block_after("What a run leaves"), re.M)
    assert sorted([*told, "lock"]) == sorted(p.name for p in left.iterdir())


def test_numbers_come_from_the_command() -> None:
    table = PAGE.partition("<!-- seeds -->\n")[2].partition("<!-- /seeds -->")[0]
    assert PAGE.count("<!-- seeds -->") == PAGE.count("<!-- /seeds -->") == 1
    everything = HOME / "benchmarks" / "SEEDS.md"
    assert bool(table) == everything.is_file() == (HOME / "docs" / "curve.svg").is_file()
    rows = [line for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    assert not table or (len(rows) == 5 and all(row in everything.read_text() for row in rows))
    outside = PAGE.replace(table, "") if table else PAGE
    assert not re.search(r"\d\s*(%|seconds|minutes|hours|tok/s)", outside)
