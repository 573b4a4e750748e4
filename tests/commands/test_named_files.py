"""`--verifier grader.py:grade` means the module and its file; a recipe's text alone never loads a file."""

from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands.user_code_files import with_named_files

CODE = "def grade(answer):\n    return len(answer) / 10\n"


@pytest.fixture(autouse=True)
def folder(home: Path) -> None:
    Path("code dir").mkdir()
    Path("code").mkdir()
    for path in ("grader.py", "code/other.py", "code dir/spaced.py"):
        Path(path).write_text(CODE)
    Path("rows.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n')


@pytest.mark.parametrize(
    ("words", "value", "files"),
    [
        (["--verifier", "grader.py:grade"], "grader:grade", ["grader.py"]),
        (["--verifier=./grader.py:grade"], "grader:grade", ["./grader.py"]),
        (["--verifier", "code dir/spaced.py:grade"], "spaced:grade", ["code dir/spaced.py"]),
        (["--verifier", "grader.py:grade", "--use", "grader.py"], "grader:grade", []),
        (["--verifier", "other.py:grade", "--use=code/other.py"], "other:grade", []),
        (["--verifier", '{verifier = "grader.py:grade"}'], '{verifier = "grader:grade"}', ["grader.py"]),
        (["--verifier.verifier", "grader.py:grade"], "grader:grade", ["grader.py"]),
        (["--verifier", "grader.py:grade,code/other.py:grade"], "grader:grade,other:grade",
         ["grader.py", "code/other.py"]),
        (["--trackers", '["json", "grader.py:Sink"]'], '["json", "grader:Sink"]', ["grader.py"]),
        (["--method.objective.surrogate", "grader.py:Clip"], "grader:Clip", ["grader.py"]),
        (["--verifier", "grader:grade"], "grader:grade", []),
        (["--verifier", '{url = "http://host.py:80"}'], '{url = "http://host.py:80"}', []),
        (["--system", "grader.py:grade"], "grader.py:grade", []),
        (["--task", "code/tasks.py:Mine"], "tasks:Mine", ["code/tasks.py"]),
        (["--out", "grader.py:grade"], "grader.py:grade", []),
    ],
)  # fmt: skip
def test_the_file_of_a_value_is_one_of_use(words: list[str], value: str, files: list[str]) -> None:
    name, *changed = with_named_files(["train", *words, "--", "grader.py:grade"])
    uses = [word for file in files for word in ("--use", file)]
    assert name == "train" and changed[: len(uses)] == uses and changed[-2:] == ["--", "grader.py:grade"]
    assert changed[len(uses) :][: len(words)] == [words[0].partition("=")[0] + f"={value}", *words[1:]] or (
        changed[len(uses) :][: len(words)] == [words[0], value, *words[2:]]
    )


def test_a_file_that_is_named_runs_and_is_in_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "rows.jsonl", "--verifier", "code/other.py:grade", "--iterations", "0"]
    assert main(["train", *words, "--evaluate.problems", "1"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"using {Path('code/other.py').resolve()}  sha256 ")
    assert output.count("--samples 8 --use code/other.py\n") == 1
    (run,) = Path("runs").iterdir()
    assert '[verifier]\nkind = "Function"\nname = "grade"\nfile = "other.py"\n' in (run / "recipe.toml").read_text()
    assert main(["audit", "grader.py:grade", "--cases", "cases.jsonl"]) != 0  # no cases, but the file was loaded
    assert f"using {Path('grader.py').resolve()}" in capsys.readouterr().out


def test_a_recipe_alone_loads_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    for name, fix in (("grader.py", "--use grader.py "), ("code/other.py", "--use code/other.py ")):
        Path("r.toml").write_text(f'method = "gspo"\ntask = "rows.jsonl"\nverifier = "{name}:grade"\n')
        assert main(["check", "r.toml"]) == 2
        output = capsys.readouterr().out
        assert fix in output and "using" not in output and ".py.py" not in output
    assert main(["check", "--task", "rows.jsonl", "--verifier", "missing.py:grade"]) == 2
    assert "missing.py is not a Python file" in capsys.readouterr().err
