"""`examples/learned_reward.toml` at a small size: five phases are killed, moved and resumed to the same bytes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands.train import resume
from groupwise.learner import Learner
from groupwise.lifecycle import create_or_open_run as training
from groupwise.models import SequenceClassifier, read_model
from groupwise.runs.phase_directories import phase_directories
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from tests.commands.test_phases import errors, killed
from tests.docs.test_pages import HOME
from tests.faults.small_runs import forked, left, lines

pytestmark = pytest.mark.usefixtures("home")

RUN = Path("run")
PHASES = ("1-imitate", "2-prefer", "3-verify", "4-judge", "5-please")
SMALL = {
    "prompts = 16": "prompts = 4\nsave.every = 1",
    "max_tokens = 48": "max_tokens = 16",
    "problems = 64": "problems = 2",
    "group_size = 8": "group_size = 4",
    "iterations = 20": "iterations = 2",
    "epochs = 2": "epochs = 0.5",
    "epochs = 4": "epochs = 0.5",
}
"""Two iterations for each phase."""
ROWS = 16
"""The rows of a small run, of which some are held out."""


def pipeline() -> str:
    text = (HOME / "examples" / "learned_reward.toml").read_text()
    for before, after in SMALL.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def begun(home: Path) -> None:
    """A run of the pipeline in which no phase has started, in a directory to go to."""
    (home / RUN).mkdir(parents=True)
    (home / RUN / "recipe.toml").write_text(pipeline())
    with_rows(home)


def with_rows(home: Path) -> None:
    """Go to a directory with the first rows of the example."""
    os.chdir(home)
    Path("examples").mkdir()
    for name in ("demonstrations", "pairs"):
        rows = (HOME / "examples" / f"learned_reward_{name}.jsonl").read_text().splitlines()
        Path(f"examples/learned_reward_{name}.jsonl").write_text("\n".join(rows[:ROWS]) + "\n")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run that never stopped, in a fork without checks of arrays."""
    home, before = tmp_path_factory.mktemp("straight"), Path.cwd()
    begun(home)
    assert forked(lambda: resume(str(RUN)), home / "log") == 0, (home / "log").read_text()
    yield home
    os.chdir(before)


def test_each_phase_uses_the_models_of_the_phases_before(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(straight)
    assert [path.name for path in phase_directories(RUN)] == [*PHASES]
    assert [len(lines(RUN / phase)) for phase in PHASES] == [3] * 5
    judge, please = (RunInfo.read(RunLayout(RUN / phase)) for phase in PHASES[3:])
    assert (judge.model, please.model) == ("@verify/model", "@verify/model")
    assert isinstance(read_model(RUN / "4-judge" / "model"), SequenceClassifier)
    assert len(please.reward_models) == 1 and 'path = "@judge/model"' in please.recipe
    last = lines(RUN / "5-please")[-1]
    assert {"subscores/liked", "subscores/right", "score/mean", "eval/accuracy_greedy"} <= last.keys()
    assert all(line["grad_norm"] > 0 for phase in PHASES for line in lines(RUN / phase)[1:])
    named = [path for path in RUN.rglob("*") if path.is_file() and str(straight).encode() in path.read_bytes()]
    assert named == [], "no file has the run's path, so that the run can be moved"


@pytest.mark.t(49)
def test_a_run_that_is_killed_and_moved_ends_with_the_same_bytes(
    straight: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the second phase, before the fourth, and within the fourth and the fifth."""
    monkeypatch.chdir(straight)
    expected = [left(path) for path in phase_directories(RUN)]
    begun(home / "old")
    points = ((Learner, "step", 3, "after"), (training, "start_run", 2, "before"), (Learner, "step", 2, "after"),
              (Learner, "step", 3, "before"))  # fmt: skip
    started = []
    for owner, name, call, when in points:
        code = forked(lambda at=(owner, name, call, when): killed(*at), home / "log")
        assert code == -signal.SIGKILL, (home / "log").read_text()
        started.append(sum(path.is_dir() for path in phase_directories(RUN)))
    assert started == [2, 4, 4, 5]
    (home / "old").rename(home / "new")
    os.chdir(home / "new")
    assert forked(lambda: resume(str(RUN)), home / "log") == 0, (home / "log").read_text()
    assert [left(path) for path in phase_directories(RUN)] == expected


def test_check_reads_the_whole_chain_first(home: Path) -> None:
    """Names, order and kinds of the models that phases pass on."""
    with_rows(home)
    good = pipeline()
    assert errors(good) == ""
    without = errors(good.replace('model = "@verify/model"\n', ""))
    assert "phase please: the phase starts from the reward model of the phase judge" in without
    assert 'set its model, such as model = "@verify/model"' in without
    policy = errors(good.replace('"@judge/model"', '"@prefer/model"'))
    assert "the verifier's reward model is that of the phase prefer, whose method trains a policy" in policy
    assert "earlier phases with a reward model: judge" in policy
    assert "no earlier phase is called 'juge'" in errors(good.replace('"@judge/model"', '"@juge/model"'))
    early = good.replace(
        'name = "verify"\n', 'name = "verify"\nverifier = { kind = "RewardModel", path = "@judge/model" }\n'
    )
    assert "no earlier phase is called 'judge'" in errors(early)
    steps = errors(good.replace('kind = "RewardModel"', 'kind = "ProcessRewardModel"'))
    assert "the verifier's process reward model is that of the phase judge: no method here trains one" in steps
    twice = '[[phase]]\nname = "again"\nmodel = "@judge/model"\nlora.rank = 2\nmethod.base = "bradley_terry"\n'
    twice += 'task = "examples/learned_reward_pairs.jsonl"\n\n[[phase]]\nname = "please"'
    adapted = good.replace('name = "judge"\n', 'name = "judge"\nlora.rank = 2\n')
    assert errors(adapted.replace('[[phase]]\nname = "please"', twice)) == ""
    long = good.replace('kind = "RewardModel"', 'kind = "RewardModel", template = "chat"')
    assert "phase please: this model's tokenizer has no chat template" in errors(long)


def test_train_starts_nothing_if_the_chain_is_wrong(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_rows(home)
    Path("pipeline.toml").write_text(pipeline().replace('"@judge/model"', '"@prefer/model"'))
    assert main(["train", "pipeline.toml"]) == 2
    assert "whose method trains a policy" in capsys.readouterr().err and not Path("runs").exists()
