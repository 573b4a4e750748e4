"""The README: its output blocks, its list of rooms, the files of a run, the source of its numbers."""

import inspect
import re
from pathlib import Path

import pytest

from groupwise.commands.show import show_diff
from groupwise.config.keyword_arguments import overrides_of
from groupwise.methods import gspo
from groupwise.models import of_hub
from tests.docs.test_pages import HOME, blocks
from tests.docs.warm_shell import run

PAGE = (HOME / "README.md").read_text()


def block_after(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("```\n")[2].partition("```")[0]


def test_the_output_of_diff() -> None:
    (console,) = [b for b in blocks("README.md") if b.language == "console"]
    assert console.text == f"$ groupwise diff grpo dapo\n{show_diff('grpo', 'dapo')}\n"
    assert len(console.text.splitlines()) <= 11
    line = re.search(r"`groupwise diff grpo gspo` says\s`(.*?)`", PAGE)
    assert line and line[1] in show_diff("grpo", "gspo").splitlines()


def test_the_method_is_the_one_in_the_package() -> None:
    library, python = [b for b in blocks("README.md") if b.language == "python"]
    assert "gw.train(" in library.text
    assert python.text == inspect.getsource(inspect.unwrap(gspo))


def test_the_example_from_python_prints_what_the_page_says(tmp_path: Path) -> None:
    """Another processor rounds differently, so the scores are compared within 0.15, and the sample by its form."""
    library, _ = [b for b in blocks("README.md") if b.language == "python"]
    (page,) = [b.text for b in blocks("README.md") if b.language == "text"]
    (tmp_path / "train.py").write_text(library.text)
    scores, last = run("python train.py", tmp_path).splitlines()[-2:]
    line = r"held-out score (\d\.\d\d) -> (\d\.\d\d)"
    printed, said = (re.fullmatch(line, text) for text in (scores, page.splitlines()[0]))
    assert printed and said
    assert all(abs(float(now) - float(then)) < 0.15 for now, then in zip(printed.groups(), said.groups()))
    assert float(printed[2]) > float(printed[1]) + 0.2
    for text in (last, page.splitlines()[1]):
        assert re.fullmatch(r"\S+;#\d+ runs/rows-\d{8}-\d{6}/report\.html", text)


def test_the_words_for_a_language_model_are_arguments_of_train() -> None:
    words = re.search(r'For a language model on a GPU, pass `(model="(\S+)", template="chat")`', PAGE)
    assert words and of_hub(words[2])
    assert overrides_of({"model": words[2], "template": "chat"}) == [("model", words[2]), ("template", "chat")]


def test_the_rooms_are_those_on_disk() -> None:
    package = HOME / "src" / "groupwise"
    rooms = re.findall(r"^  (\w+)/ ", block_after("The rooms"), re.M)
    assert sorted(rooms) == sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file())
    for name in re.findall(r"^(\w+)/ ", block_after("The rooms"), re.M):
        assert (HOME / name).is_dir()


def test_a_run_on_your_own_problems_leaves_the_listed_files(tmp_path: Path) -> None:
    (command,) = [b.text.strip() for b in blocks("README.md") if b.language == "sh"]
    rows = [f'{{"prompt": "{a}+{b}=", "answer": {a + b}}}' for a in range(1, 5) for b in range(2, 6)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    run(f"{command} --iterations 1 --prompts 4", tmp_path)
    (directory,) = (tmp_path / "runs").iterdir()
    listed = re.findall(r"^  ([\w.]+)/? ", block_after("What a run leaves"), re.M)
    for name in ("models", "logs"):  # only if the recipe asks for models or other processes
        listed.remove(name)
    assert sorted([*listed, "lock"]) == sorted(p.name for p in directory.iterdir())


@pytest.mark.slow
def test_the_command_on_several_processes_has_the_bits_of_the_one_below_it(tmp_path: Path) -> None:
    commands = re.findall(r"^groupwise train .*--cluster.*$", PAGE, re.M)
    small = "--iterations 2 --prompts 4 --method.group_size 4 --sampling.max_tokens 12 --evaluate.problems 2"
    for name, command in zip(("several", "one"), commands, strict=True):
        run(f"{command} {small} --name {name}", tmp_path)
    several, one = (next((tmp_path / "runs").glob(f"{name}-*")) for name in ("several", "one"))
    for file in ("metrics.jsonl", "model/model.safetensors"):
        assert (several / file).read_bytes() == (one / file).read_bytes()


def test_numbers_come_from_the_command() -> None:
    table = PAGE.partition("<!-- seeds -->\n")[2].partition("<!-- /seeds -->")[0]
    assert PAGE.count("<!-- seeds -->") == PAGE.count("<!-- /seeds -->") == 1
    everything = HOME / "benchmarks" / "SEEDS.md"
    assert bool(table) == everything.is_file() == (HOME / "docs" / "curve.svg").is_file()
    rows = [line for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    assert not table or (len(rows) == 5 and all(row in everything.read_text() for row in rows))
    outside = PAGE.replace(table, "") if table else PAGE
    assert not re.search(r"\d\s*(%|seconds|minutes|hours|tok/s)", outside)
