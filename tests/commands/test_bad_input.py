"""Invalid input: each case raises a typed error with a fix, before a run directory is created."""

import json
from pathlib import Path

import pytest
import torch

from groupwise.__main__ import main
from groupwise.models import Decoder, write_model
from tests.models.directories import bytes_, shape

pytestmark = pytest.mark.usefixtures("home")

SMALL = ["--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "4", "--iterations", "1",
         "--sampling.max_tokens", "16"]  # fmt: skip
VALID = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in (2, 3, 4) for b in (5, 6)]


def error_of(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The error of a command. It has a fix and no traceback, and no run was started."""
    assert main(list(words)) == code
    message = capsys.readouterr().err
    notes = ("machine: ", "plan: ", "defaults: ")
    message = "\n".join(line for line in message.splitlines() if not line.startswith(notes)) + "\n"
    assert message.startswith("error: ") and "Traceback" not in message and "  do:   " in message
    assert not Path("runs").exists()
    return message


def rows(path: str, *objects: object) -> str:
    Path(path).write_text("".join(json.dumps(o) + "\n" if o is not None else "\n" for o in objects))
    return path


def test_invalid_values_raise_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    KL = '[{kind="KL",coefficient=0.04}]'
    for field, value, what, fix in (
        ("prompts", "6", "6 prompts cannot be cut into 4 equal minibatches", "a multiple of 4, such as --prompts 4"),
        ("prompts", "2", "2 prompts cannot be cut", "such as --prompts 4"),
        ("prompts", "-4", "prompts is -4", "at least 1"),
        ("iterations", "-1", "iterations is -1", "at least 0"),
        ("seed", str(2**64), "seed is 18446744073709551616", "below 2**64"),
        ("max_unverifiable", "1.5", "max_unverifiable is 1.5", "from 0 to 1"),
        ("max_unverifiable", "nan", "max_unverifiable is nan", "from 0 to 1"),
        ("machine.threads", "0", "threads is 0", "at least 1"),
        ("machine.microbatch_tokens", "0", "microbatch_tokens is 0", "at least 1"),
        ("machine.device", "meta", "no device is called 'meta'", "cpu or cuda"),
        ("machine.device", "cpu:x", "'cpu:x' is not a device", "cpu or cuda"),
        ("machine.device", "cuda:x", "'cuda:x' is not a device", "cpu or cuda"),
        ("engine.max_num_seqs", "0", "max_num_seqs is 0", "at least 1"),
        ("engine.max_logprob_diff", "nan", "max_logprob_diff is nan", "at least 0"),
        ("evaluate.problems", "-1", "problems is -1", "at least 1"),
        ("evaluate.samples", "0", "samples is 0", "at least 1"),
        ("save.keep", "0", "keep is 0", "at least 1"),
        ("optimizer.lr", "nan", "lr=nan", "lr, weight_decay and warmup_steps >= 0"),
        ("optimizer.betas", "[0.9, 1.0]", "betas=(0.9, 1.0)", "betas < 1"),
        ("machine.threads", "1000000000", "threads is 1000000000", "at most 4096"),
        ("method.group_size", "1000000000", "group_size is 1000000000", "at most 65536"),
        ("engine", "{ kind = 'Served', replicas = 1000000 }", "replicas is 1000000", "from 0 to 4096"),
        ("sampling.temperature", "1e-300", "temperature is 1e-300", "0, which is greedy, or at least 1e-06"),
        ("sampling.temperature", "nan", "temperature=nan", "temperature >= 0"),
        ("sampling.temperature", "0", "all answers of a group would be equal", "above 0"),
        ("sampling.top_p", "0.9", "sampling is truncated", "it holds in an evaluation, or for single samples"),
        ("sampling.max_tokens", "0", "max_tokens is 0", "at least one token"),
        ("method.group_size", "1", "group_size is 1 and the advantage compares samples of a group", "to 2 or more"),
        ("method.objective.aggregate", "token_mean", "sequence_ratio", "use sequence_mean or group_mean"),
        ("method.objective.penalties", KL, "does not define", "--method.models '{ reference = \"InitialPolicy\" }'"),
        (
            "method.shaping",
            '[{kind="OverlongPenalty",buffer_length=100}]',
            "larger than the generation budget",
            "as a share",
        ),
        ("trackers", '["wandbb"]', "unknown tracker 'wandbb'", "tensorboard, wandb, trackio"),
    ):
        message = error_of(capsys, 2, "train", "--evaluate.problems", "4", f"--{field}", value)
        assert what in message and fix in message, message
    for field, what in (
        ("machine.rollout_deadline", "above 0 seconds"),
        ("machine.verdict_deadline", "above 0 seconds"),
        ("method.objective.surrogat.low", "did you mean --method.objective.surrogate.low?"),
        ("promts", "did you mean --prompts?"),
        ("sampling.max_token", "did you mean --sampling.max_tokens?"),
        ("iterations", "expected a whole number"),
    ):
        assert main(["train", f"--{field}", "-0.5"]) == 2 and not Path("runs").exists()
        assert what in capsys.readouterr().err


def test_a_suggested_fix_works() -> None:
    """The override that the error suggests is valid."""
    words = ["--method.objective.penalties", '[{kind="KL",coefficient=0.04}]']
    assert main(["train", *SMALL, *words, "--method.models", '{ reference = "InitialPolicy" }']) == 0


def test_invalid_recipe_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.toml").write_text("")
    Path("folder.toml").mkdir()
    Path("deep.toml").write_text("x = " + "[" * 50_000)
    assert "is nested too deeply" in error_of(capsys, 2, "train", "deep.toml")
    Path("dotted.toml").write_text("a" + ".a" * 3000 + " = 1")
    for command in ("train", "check"):
        assert main([command, "dotted.toml"]) == 2
        assert "is nested too deeply" in "".join(capsys.readouterr())
    assert "no field of a recipe is this deep" in error_of(capsys, 2, "train", "--engine" + ".a" * 3000, "1")
    with Path("large.toml").open("w") as file:
        file.truncate(1 << 40)
    assert "more than 8,388,608 bytes" in error_of(capsys, 2, "train", "large.toml")
    assert 'add method = "gspo"' in error_of(capsys, 2, "train", "empty.toml")
    assert "Is a directory" in error_of(capsys, 2, "train", "folder.toml")
    assert "No such file" in error_of(capsys, 2, "train", "none.toml")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_missing_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--machine.device cpu" in error_of(capsys, 4, "train", "--machine.device", "cuda")


# Models


def test_invalid_model_directories(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(name: str) -> Path:
        write_model(Decoder.new(shape(vocabulary_size=300), 1, spread=0.2), home / name, tokenizer=bytes_())
        return home / name

    assert "there is no model at nope" in error_of(capsys, 3, "train", "--model", "nope")
    assert "hf download a/b" in error_of(capsys, 4, "train", "--model", "a/b")
    (write("bare") / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in error_of(capsys, 3, "train", "--model", "bare")
    pickled = write("pickle")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert "safetensors" in error_of(capsys, 3, "train", "--model", "pickle")
    config = write("code") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoModel": "evil.Evil"}}))
    (config.parent / "evil.py").write_text("open('fired', 'w')")
    for command in (("train", "--model", "code"), ("eval", "code"), ("sample", "code", "a")):
        assert "auto_map" in error_of(capsys, 3, *command)
    assert not Path("fired").exists()
    message = error_of(capsys, 3, "train", "--sampling.max_tokens", "1000")
    assert "the model takes 128 at once" in message and "lower sampling.max_tokens" in message


def test_two_errors_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(capsys, 2, "train", "--trackers", '["x"]', "--task", "none.jsonl", "--verifier", "exact")
    assert "error: 2 errors" in message and "unknown tracker" in message and "there is no file none.jsonl" in message


# Tasks and verifiers


def test_invalid_rows(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "--verifier", "last_number", "--task"]
    assert "holds no problem" in error_of(capsys, 3, *base, rows("empty.jsonl"))
    again = {**VALID[0], "answer": "none"}
    message = error_of(capsys, 3, *base, rows("bad.jsonl", *VALID[:2], None, again, {"prompt": "2+2=", "answer": ""}))
    assert "3 of 5 rows" in message and "row 3: empty" in message
    assert (
        "row 4: it repeats the prompt of row 1 with another answer" in message
        and "row 5: field 'answer' is empty" in message
    )
    message = error_of(capsys, 3, *base, rows("text.jsonl", *VALID, {"prompt": "2+What?", "answer": 3}))
    assert "row 7" in message and "no token for the character 'W'" in message and "[UNK]" not in message
    message = error_of(capsys, 3, *base, rows("other.jsonl", {"question": "2+2=", "target": 4}))
    assert "say --columns.prompt question" in message
    assert "needs a gold answer that is a number" in error_of(
        capsys, 3, *base, rows("words.jsonl", {"prompt": "2=", "answer": "two"})
    )
    message = error_of(capsys, 2, "train", "--task", rows("valid.jsonl", *VALID))
    assert "--reward last_number" in message
    message = error_of(capsys, 2, "train", "--task", "valid.jsonl", "--verifier", "mine:grade")
    assert "--use mine.py" in message


def test_a_prompt_without_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(capsys, 3, "sample", "calculator", "7*5 hello")
    assert "no token for the character ' '" in message
    assert "has no tokens" in error_of(capsys, 2, "sample", "calculator", "")


@pytest.fixture
def train_words(home: Path) -> list[str]:
    """`groupwise train` on a user's rows with a model that can encode them."""
    write_model(Decoder.new(shape(vocabulary_size=300), 1, spread=0.2), home / "tiny", tokenizer=bytes_())
    rows("own.jsonl", *({"question": f"Was ist {a} plus 5, bitte?", "target": str(a + 5)} for a in range(6)))
    columns = ["--columns.prompt", "question", "--columns.answer", "target", "--sampling.max_tokens", "8"]
    return ["train", "--model", "tiny", "--task", "own.jsonl", *columns, *SMALL]


def test_a_user_s_task_model_and_verifier(train_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def grade(prompt, answer, gold):\n    return len(answer) % 2 == 0\n")
    assert main([*train_words, "--verifier", "last_number"]) == 0
    assert main([*train_words, "--verifier", "mine:grade", "--use", "mine.py"]) == 0
    runs = sorted(Path("runs").iterdir())
    assert [run.name[:4] for run in runs] == ["own-", "own-"]
    with_code = next(run for run in runs if json.loads((run / "run.json").read_text())["use"])
    capsys.readouterr()
    assert main(["eval", str(with_code)]) == 2
    assert "--use mine.py" in capsys.readouterr().err
    assert main(["eval", str(with_code), "--use", "mine.py", "--samples", "2"]) == 0
    assert "pass@2" in capsys.readouterr().out
    Path("mine.py").write_text("def grade(prompt, answer, gold):\n    return True\n")
    assert main(["resume", str(with_code), "--use", "mine.py"]) == 3
    assert "started with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "cause"),
    [("raise KeyError('gold')", "KeyError"), ("return float('nan')", "score nan"), ("return None", "NoneType")],
)
def test_a_verifier_that_always_fails(
    body: str, cause: str, train_words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(f"def grade(prompt, answer, gold):\n    {body}\n")
    message = error_of(capsys, 2, *train_words, "--verifier", "mine:grade", "--use", "mine.py")
    assert "the grade function grade gives no grade for a made-up answer" in message and cause in message


def test_a_verifier_that_fails_on_real_answers(train_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The trial call passes; each answer of the model is unverifiable, and the run ends with a checkpoint."""
    body = "    if 'made' not in answer and answer != '12': raise KeyError('gold')\n    return True\n"
    Path("mine.py").write_text(f"def grade(prompt, answer, gold):\n{body}")
    assert main([*train_words, "--verifier", "mine:grade", "--use", "mine.py"]) == 5
    message = capsys.readouterr().err
    assert "answers were unverifiable" in message and "KeyError" in message and "--max_unverifiable" in message
    (run,) = Path("runs").iterdir()
    assert f"report: {run / 'report.html'}" in message and f"groupwise resume {run} --use mine.py" in message
    assert (run / "report.html").is_file() and (run / "checkpoints" / "000000" / "manifest.json").is_file()


# Runs


def test_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--machine.dtype", "float64"]) == 0
    assert main(["train", *SMALL, "--machine.dtype", "bfloat16"]) == 0
    assert main(["train", "--engine.max_logprob_diff", "by_type"]) == 2
    assert "expected a number or by_dtype" in capsys.readouterr().err
    assert main(["train", *SMALL, "--machine.dtype", "bfloat16", "--engine.max_logprob_diff", "0.001"]) == 5
    message = capsys.readouterr().err
    assert (
        "engine and learner differ" in message and "machine.dtype float32, or raise engine.max_logprob_diff" in message
    )


def test_directories_that_are_not_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "none").mkdir()
    for command in ("resume", "report"):
        assert "the run in none is empty" in error_of(capsys, 3, command, "none")
        assert "missing is not a run" in error_of(capsys, 3, command, "missing")
    assert "there is no model at missing" in error_of(capsys, 3, "eval", "missing")
    assert "did you mean calculator?" in error_of(capsys, 3, "eval", "calculater")
    (home / "file").write_text("")
    assert "could not be written" in error_of(capsys, 6, "train", *SMALL, "--out", "file/runs")
    assert "file" in error_of(capsys, 6, "train", *SMALL, "--out", "file")
    assert main(["train", *SMALL, "--out", "o", "--iterations", "0"]) == 0
    capsys.readouterr()
    (run,) = Path("o").iterdir()
    about = (run / "run.json").read_text()
    (run / "run.json").write_text("{")
    assert "run.json cannot be read" in error_of(capsys, 6, "resume", str(run))
    (run / "run.json").write_text(about)
    (run / "recipe.toml").write_text("nonsense")
    assert "is not TOML" in error_of(capsys, 2, "resume", str(run))


def test_invalid_environments(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine.py").write_text(
        "class Good:\n    def reset(self, prompt, random): ...\n    def step(self, message): ...\n"
        "class Half:\n    def reset(self, prompt, random): ...\n"
        "class Level(Good):\n    def __init__(self, level): ...\n"
    )
    turns = ("--method.strategy", "Turns", "--evaluate.strategy", "Turns")
    use = ("--use", "mine.py")
    for words, what, fix in (
        (turns, "method.strategy is Turns, which needs an environment", "add --environment"),
        (("--environment", "mine:Good", *turns), "'mine:Good' is code in a file", "add --use mine.py"),
        (("--environment", "mine:Bad", *use, *turns), "mine.py does not define 'Bad'", "mine:Good"),
        (("--environment", "mine:Half", *use, *turns), "Half has no method step", "def step(self, message)"),
        (
            ("--environment", "mine:Level", *use, *turns),
            "the environment Level cannot be created",
            "needs no arguments",
        ),
        (("--environment", "good", *turns), "no environment is called 'good'", "my_file:MyEnvironment"),
        ((*turns, "--method.strategy.max_turns", "0"), "max_turns is 0", "take 1 or more"),
    ):
        message = error_of(capsys, 2, "train", *SMALL, *words)
        assert what in message and fix in message, message
