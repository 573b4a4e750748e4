"""Messages are in the words of the door that they were reached by: Python's in the library, options in commands."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.api.python_messages import from_python
from groupwise.config.command_line_advice import in_options
from groupwise.config.python_advice import field_pattern, in_python, option_pattern
from groupwise.core import GroupwiseError, Usage
from groupwise.training.progress_output import ProgressPrinter, notify

SOURCE = Path(gw.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*")
OF_COMMANDS = re.compile(r"groupwise (?:train|resume|eval|sample|export|methods|help|show)\b")
OTHERS = (
    "hf download",
    "pip install",
    "ray start",
    "groupwise serve",
    "groupwise merge",
    "groupwise plan",
    "--security-opt",
)
"""Programs that a user starts himself: their options stay."""
NOT_REACHED = ("planning/gpu_cards.py", "planning/this_machine.py", "planning/split_settings.py",
    "config/command_line_advice.py",
    "__main__.py", "commands/", "certificates/", "whatif/", "sandbox/bubblewrap_command.py",
    "models/diffusion/tiny_pipeline.py",
    "evaluation/published_protocols.py", "engines/remote/server.py", "engines/remote/tls.py",
    "engines/remote/secret.py",
)  # fmt: skip
"""Code that no call of the library reaches, and the words of other programs' command lines."""
PIECES = (
    "--preset",
    "--data",
    "--dtype",
    "--kind",
    "--columns.",
    "--warm_start.columns.",
    "--revision",
    "--upgrade",
    "--pushX",
)
"""Parts of texts, and options that only a command has."""
NO_MESSAGES = (
    "config/python_advice.py", "config/command_line_advice.py", "config/constructor_advice.py",
    "methods/classics/", "methods/contrast/", "methods/flow/", "methods/multi_agent/", "methods/ratio/",
    "methods/rewards_and_advantages/", "methods/sampling/", "methods/effect_settings.py", "training/build_run.py",
)  # fmt: skip
"""Patterns, the settings of papers, and the evidence of an error, which is data."""
CALL = re.compile(r"\bgw\.[a-z]\w+\(|=gw\.")
OF_PROGRAMS = (
    "__init__.py",
    "api/",
    "config/train_keyword_arguments.py",
    "config/unknown_argument_advice.py",
    "config/constructor_wrappers.py",
    "runs/permission_options.py",
)
"""Code that only a call of the library reaches."""
ONLY_IN_PYTHON = ("gw.resume(run, agent=agent)", "gw.resume(run, reward=", "run = gw.train(...)")
"""Calls without a command that does the same: a function in memory is passed again."""
ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(6) for b in range(6)]
ASKED = [{"question": row["prompt"], "answer": row["answer"]} for row in ROWS]


def right(answer: str, gold: str) -> float:
    """A reward of a user."""
    return float(answer == gold)


@cache
def texts(path: Path) -> tuple[str, ...]:
    """The texts of a file that are no docstrings, with `X` for each value in them."""
    return (*texts_of(ast.parse(path.read_text("utf-8"))),)


def texts_of(tree: ast.AST) -> Iterator[str]:
    skip = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skip |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skip:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def test_every_text_of_the_package_can_be_read_in_python() -> None:
    seen = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if str(path.relative_to(SOURCE)).startswith(NOT_REACHED):
            continue
        for text in texts(path):
            if not (OPTION.search(text) or OF_COMMANDS.search(text)) or any(name in text for name in OTHERS):
                continue
            rendered = in_python(text)
            seen += rendered != text
            left = [word for word in OPTION.findall(rendered) if not word.startswith(PIECES)]
            assert left == [] and not OF_COMMANDS.search(rendered), (path.name, text, rendered)
            assert in_python(rendered) == rendered
    assert seen > 100


def test_no_door_is_answered_in_the_words_of_another() -> None:
    """A line of a recipe is an argument in Python, an option in a command without a file, and a line beside a file."""
    seen = 0
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith(NO_MESSAGES):
            continue
        for text in texts(path):
            line = re.sub(r"\bX\b", "7", text)
            if field_pattern().search(line) and "{ 7 }" not in line:
                seen += 1
                assert not field_pattern().search(in_python(line)), (name, text)
                assert not field_pattern().search(re.sub(r"'[^']*'", "", in_options(line, ["train"]))), (name, text)
                assert in_options(line, ["train", "my.toml"]) == line
            if not name.startswith(OF_PROGRAMS) and not any(call in text for call in ONLY_IN_PYTHON):
                assert not CALL.search(in_options(text, ["train"])), (name, text)
    assert seen > 20


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("say --columns.prompt q --columns.answer a; it", 'say columns={"prompt": "q", "answer": "a"}; it'),
        ("raise sampling.max_tokens, or write sampling.max_tokens = 9", "raise max_tokens, or write max_tokens=9"),
        ("use --template chat", 'use template="chat"'),
        ("add --verifier math, or --verifier my_file:grade with --use my_file.py",
         'add reward="math", or reward=grade, your function'),
        ("use --columns.prompt question --columns.answer=", 'use columns={"prompt": "question", "answer": ""}'),
        ("train an adapter: --lora.rank 16 --machine.dtype bfloat16",
         'train an adapter: lora=gw.Lora(rank=16), machine={"dtype": "bfloat16"}'),
        ("lower --samples, --problems or --sampling.max_tokens", "lower samples, problems or max_tokens"),
        ("add --use a.py --use b.py --judge host to the command",
         'pass permissions=gw.Permissions(use=["a.py", "b.py"], judges=["host"])'),
        ("continue: groupwise resume runs/a --use g.py --iterations 8",
         'continue: gw.resume("runs/a", iterations=8, permissions=gw.Permissions(use=["g.py"]))'),
        ("groupwise resume 'my runs/a'; or not", 'gw.resume("my runs/a"); or not'),
        ("groupwise export runs/a DIR --at 3", 'gw.export("runs/a", "DIR", at=3)'),
        ("use --method.objective.surrogate.high 0.3", 'use **{"method.objective.surrogate.high": 0.3}'),
        ("write optimizer.lr = 1e-6, as an option --optimizer.lr 1e-6", "write optimizer=gw.AdamW(lr=1e-06)"),
        ("such as prompts = 4, or more", "such as prompts=4, or more"),
        ("hf download NAME --local-dir DIR --revision r", "hf download NAME --local-dir DIR --revision r"),
        ('write { task = "x.jsonl" }', 'write {"task": "x.jsonl"}'),
        ("resume without --strict", "resume without strict=True"),
    ],
)  # fmt: skip
def test_options_and_commands_become_arguments_and_calls(text: str, python: str) -> None:
    assert in_python(text) == python


class Game:
    """An environment of a user, as a class."""


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "no prompt": (gw.train, {"data": ASKED, "reward": right}, 'columns={"prompt": "question"}'),
    "no reward": (gw.train, {"data": [{"prompt": "1+1="}]}, "reward=grade"),
    "trl's data": (gw.train, {"train_dataset": ROWS, "reward": right}, "write data=rows"),
    "trl's reward": (gw.train, {"data": ROWS, "reward_funcs": right}, "write reward=your_function"),
    "trl's lr": (gw.train, {"learning_rate": 1e-5}, "write optimizer=gw.AdamW(lr=1e-05)"),
    "lr in its table": (gw.train, {"optimizer": {"learning_rate": 1e-5}}, "write optimizer=gw.AdamW(lr=1e-05)"),
    "trl's group": (gw.train, {"num_generations": 8}, "write method=gw.grpo(group_size=8)"),
    "trl's length": (gw.train, {"max_completion_length": 9}, "write max_tokens=512"),
    "trl's directory": (gw.train, {"output_dir": "x"}, 'out="DIR"'),
    "verl's rollout": (gw.train, {"actor_rollout_ref.rollout.n": 8}, "group_size=8"),
    "peft": (gw.train, {"peft_config": object()}, "write lora=gw.Lora(rank=16)"),
    "callbacks": (gw.train, {"callbacks": []}, "write on_iteration=f"),
    "unknown": (gw.train, {"promts": 4}, "did you mean prompts?"),
    "unknown, far": (gw.train, {"xyzzy": 4}, "docs/fields.md"),
    "wrong type": (gw.train, {"prompts": "many"}, "such as prompts=32"),
    "permission": (gw.train, {"judges": ["x"]}, "permissions=gw.Permissions(judges=...)"),
    "code": (gw.train, {"reward": "mine:f"}, 'permissions=gw.Permissions(use=["mine.py"])'),
    "verifier": (gw.train, {"data": ROWS, "reward": "mth"}, "did you mean math?"),
    "no verifier": (gw.train, {"data": ROWS, "reward": "xyzzy"}, "pass it: reward=grade"),
    "two columns": (gw.train, {"data": [{"q": "1+1=", "a": "2"}], "reward": right}, ""),
    "several": (gw.train, {"prompts": 3, "optimizer": {"lr": "x"}}, "prompts=4"),
    "method": (gw.train, {"method": "grppo"}, "docs/fields.md"),
    "recipe": (gw.train, {"recipe": "nothing.toml"}, ""),
    "method as recipe": (gw.train, {"recipe": "gspo"}, 'gw.train(method="gspo")'),
    "template": (gw.train, {"data": ROWS, "reward": right, "template": "chat"}, 'template="no"'),
    "messages": (gw.train, {"data": [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}]}, 'reward="'),
    "host": (gw.evaluate, {"model": "calculator", "permissions": gw.Permissions(judges=["a b"])}, "judges=["),
    "flow": (gw.train, {"recipe": "rings", "method": "grpo"}, 'method="'),
    "an environment": (gw.train, {"environment": Game}, 'environment="tests.api.test_messages:Game", perm'),
    "a class": (gw.train, {"optimizer": gw.AdamW}, "optimizer=gw.AdamW(...)"),
    "lora": (gw.train, {"lora": True}, "lora=16"),
    "at": (gw.evaluate, {"model": "calculator", "at": 3}, "leave out at"),
    "no run": (gw.resume, {"run": "runs/none"}, ""),
    "no Run": (gw.Run, {"directory": "runs/none"}, ""),
    "sample": (gw.sample, {"model": "nowhere/model", "prompt": "x"}, ""),
    "load_method": (gw.load_method, {"learning_rate": 2}, ""),
    "truncated": (gw.train, {"sampling": {"top_p": 0.9}}, "holds in an evaluation"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_call_is_answered_in_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call, arguments, expected = CALLS[name]
    positional = ("gspo",) if call is gw.load_method else ()
    with pytest.raises(GroupwiseError) as caught:
        call(*positional, **({"prompts": 4} if call is gw.train and name != "unknown" else {}) | arguments)
    text = str(caught.value)
    assert expected in text
    shown = text + "".join(capfd.readouterr())
    assert not [word for word in OPTION.findall(shown) if word not in ("--local-dir", "--include")], text
    assert not OF_COMMANDS.search(shown) and "command line" not in shown and "as an option" not in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--learning_rate", "1"], ["train", "--reward_funcs", "f"], ["train", "--train_dataset", "x"],
        ["train", "--callbacks", "x"], ["train", "--push_to_hub", "1"], ["train", "--optimizer.learning_rate", "1"],
        ["train", "--verifier", "mine:f"], ["train", "--verifier", "mth"], ["train", "--sampling.top_p", "0.5"],
        ["train", "--task", "rows.jsonl"], ["eval", "calculator", "--at", "3"], ["train", "--use_vllm", "1"],
    ],
)  # fmt: skip
def test_a_refused_command_is_answered_without_python(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4)
    assert main(words) in (2, 3)
    text = capsys.readouterr().err
    assert not re.search(r"\bgw\.|\breward=|\bdata=|permissions=|=gw|from Python|\*\*\{", text), text


def test_notices_are_in_the_language_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    @from_python
    def call() -> None:
        notify("use --template chat")
        ProgressPrinter(2).notify("use --machine.device cpu")
        raise Usage("no template", evidence="--template", fix="use --template chat")

    with pytest.raises(Usage) as caught:
        call()
    notify("use --template chat")
    assert capsys.readouterr().err == 'use template="chat"\nuse machine={"device": "cpu"}\nuse --template chat\n'
    assert caught.value.fix == 'use template="chat"' and caught.value.evidence == "--template"  # data stays


def test_an_option_has_no_two_meanings() -> None:
    assert option_pattern().search("--prompts_of") is None and option_pattern().search("x--prompts 3") is None
    assert in_python("a run with --iterations above 4") == "a run with iterations above 4"


def test_a_constructor_answers_in_the_words_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same class in one process: called by a program, by its copy, by a call of the library, and by a command."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GroupwiseError) as direct:
        gw.Method(shaping=())
    assert direct.value.fix == "set shaping=(gw.Score(),)"
    with pytest.raises(GroupwiseError) as copied:
        replace(gw.Method(), shaping=())
    assert copied.value.fix == direct.value.fix
    reader = {"__name__": "groupwise.reader", "replace": replace, "method": gw.Method()}
    with pytest.raises(GroupwiseError) as inside:
        exec("replace(method, shaping=())", reader)
    assert inside.value.fix == 'set method.shaping = ["Score"]'
    with pytest.raises(GroupwiseError) as method:
        gw.grpo(group_size=1)
    assert method.value.fix == "set group_size to 2 or more"
    with pytest.raises(GroupwiseError) as clip:
        gw.Clip(low=-1)
    assert clip.value.fix == "help(gw.Clip) explains its fields"
    assert main(["train", "--method.objective.surrogate.low", "-1"]) == 2
    assert "groupwise help Clip explains its fields" in capsys.readouterr().err
    for _ in range(2):  # the class keeps no language
        assert main(["train", "--method.shaping", "[]"]) == 2
        assert "--method.shaping '[\"Score\"]'" in capsys.readouterr().err
        with pytest.raises(GroupwiseError) as called:
            gw.train(**{"method.shaping": []})
        assert '**{"method.shaping": ["Score"]}' in called.value.fix
    (tmp_path / "my.toml").write_text('method = { base = "grpo", shaping = [] }')
    assert main(["train", "my.toml"]) == 2
    assert 'method.shaping = ["Score"]' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", "--prompts", "5", "--method.minibatches", "4"], "such as --prompts 4"),
        (["check", "--prompts", "5", "--method.minibatches", "4"], "such as --prompts 4"),
        (["train", "--agent", "my_agent"], "write --agent my_agent.py:answer"),
        (["train", "--agent", "my_agent.py"], "write --agent my_agent.py:answer"),
        (["train", "my.toml"], 'agent = "my_agent.py:agent"'),
        (["check", "--environment", "my_game.py"], "write --environment my_game.py:Game"),
        (["check", "--use", "my_game.py", "--environment", "my_gam:Game"], "did you mean my_game:Game?"),
        (["check", "--environment", "my_agnt.py"], "did you mean my_agent.py"),
    ],
)  # fmt: skip
def test_a_command_is_answered_with_its_option(
    words: list[str], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text("async def answer(prompt, client):\n    return 1\n")
    (tmp_path / "my_game.py").write_text("class Game:\n    pass\n")
    (tmp_path / "my.toml").write_text('method = "gspo"\nagent = "my_agent"')
    assert main(words) == 2
    shown = capsys.readouterr()
    assert fix in shown.err + shown.out
