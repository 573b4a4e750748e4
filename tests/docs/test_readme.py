"""The README: its length, its output blocks, its examples, its pictures, the source of its numbers."""

import inspect
import re
from pathlib import Path

import pytest
from tools.site_pages import LINK

from groupwise.commands.show_and_diff import show_diff
from groupwise.config.train_keyword_arguments import overrides_of
from groupwise.methods import gspo
from groupwise.methods.families import method_files
from groupwise.models import of_hub
from tests.docs.test_pages import HOME, blocks
from tests.docs.test_site import FENCED
from tests.docs.warm_shell import run

PAGE = (HOME / "README.md").read_text()
MOST_WORDS = 900
LABEL = re.compile(r"^ *(machine|plan|run|done|report|model): |^ *\d+/\d+  |^  (held-out greedy) ", re.MULTILINE)


def texts(language: str) -> list[str]:
    return [block.text for block in blocks("README.md") if block.language == language]


def test_it_is_short_and_shows_a_picture_in_both_modes() -> None:
    assert len(PAGE.split()) <= MOST_WORDS
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', PAGE)
    assert pictures == ["docs/rollouts-dark.png", "docs/rollouts-light.png"]
    assert all(0 < (HOME / path).stat().st_size < 200_000 for path in pictures)


def test_the_output_of_diff() -> None:
    (console,) = texts("console")
    assert console == f"$ groupwise diff grpo dapo\n{show_diff('grpo', 'dapo')}\n"
    page = (HOME / "docs/add-a-method.md").read_text()
    line = re.search(r"`groupwise diff grpo gspo` says\s`(.*?)`", page)
    assert line and line[1] in show_diff("grpo", "gspo").splitlines()


def test_the_method_is_the_one_in_the_package() -> None:
    method, *_ = [b.text for b in blocks("docs/add-a-method.md") if b.language == "python"]
    assert method == inspect.getsource(inspect.unwrap(gspo))
    others = re.search(r"GRPO, DAPO, GSPO or one of (\d+) other", PAGE)
    assert others and len(method_files()) - 3 >= int(others[1])


def test_make_train_prints_these_lines(tmp_path: Path) -> None:
    """Their order and their first words; numbers and times are those of one run."""
    train, _ = texts("text")
    printed = run("groupwise train --iterations 1 --prompts 4 --evaluate.problems 2 2>&1", tmp_path)
    said, now = ([m[1] or m[2] for m in LABEL.finditer(text) if m[1] or m[2]] for text in (train, printed))
    assert said == now and " 0/60  held-out " in train and "60/60  reward " in train


def test_the_example_from_python_prints_what_the_page_says(tmp_path: Path) -> None:
    """Another processor rounds differently, so the scores are compared within 0.15, and the sample by its form."""
    (library,), (_, page) = texts("python"), texts("text")
    (tmp_path / "train.py").write_text(library)
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


def test_a_run_on_your_own_problems_leaves_the_files_that_the_page_of_runs_lists(tmp_path: Path) -> None:
    (command,) = texts("sh")
    rows = [f'{{"prompt": "{a}+{b}=", "answer": {a + b}}}' for a in range(1, 5) for b in range(2, 6)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    (function,) = re.findall(r"^def reward.*?(?=\n\n\n)", texts("python")[0], re.M | re.S)
    (tmp_path / "my_reward.py").write_text(f"{function}\n")
    run(f"{command.strip()} --iterations 1 --prompts 4", tmp_path)
    (directory,) = (tmp_path / "runs").iterdir()
    (tree,) = re.findall(r"^runs/calculator-\d+-\d+/\n(.*?)^```", (HOME / "docs/runs.md").read_text(), re.M | re.S)
    listed = re.findall(r"^  ([\w.]+)/? ", tree, re.M)
    for name in ("models", "logs"):  # only if the recipe asks for models or other processes
        listed.remove(name)
    assert sorted([*listed, "lock"]) == sorted(p.name for p in directory.iterdir())


@pytest.mark.slow
def test_the_command_on_several_processes_has_the_bits_of_the_one_below_it(tmp_path: Path) -> None:
    page = (HOME / "docs/cluster.md").read_text().partition("## The same recipe on several processes")[2]
    commands = re.findall(r"^groupwise train .*--cluster.*$", page, re.M)[:2]
    small = "--iterations 2 --prompts 4 --method.group_size 4 --sampling.max_tokens 12 --evaluate.problems 2"
    for name, command in zip(("several", "one"), commands, strict=True):
        run(f"{command} {small} --name {name}", tmp_path)
    several, one = (next((tmp_path / "runs").glob(f"{name}-*")) for name in ("several", "one"))
    for file in ("metrics.jsonl", "model/model.safetensors"):
        assert (several / file).read_bytes() == (one / file).read_bytes()


def test_numbers_come_from_commands() -> None:
    """Outside the output of commands, the prose has no measurement but TRL's, which its command writes."""
    prose = re.sub(r"<!-- trl -->.*?<!-- /trl -->", "", FENCED.sub("", PAGE), flags=re.S)
    assert not re.search(r"\d\s*(%|seconds|minutes|hours|tok/s)", prose)
    assert len(LINK.findall(PAGE)) > 30
