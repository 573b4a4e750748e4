"""Layout of a run directory: the name of every file and folder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAMPLE_FILES = (".jsonl", ".safetensors")
"""Suffixes of the two files of an iteration's samples: JSON lines of samples, and tensors of numbers per token."""
PICTURES = ".png"
"""Suffix of the file with the pictures of an iteration's samples, if a flow policy generated them."""


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of all files of a run directory. The folder of the warm start has the same layout.

    >>> RunLayout(Path("runs/a")).metrics.as_posix()
    'runs/a/metrics.jsonl'
    """

    run_directory: Path

    @property
    def info(self) -> Path:
        """`RunInfo` as JSON: command, versions, identity of recipe, data and model."""
        return self.run_directory / "run.json"

    @property
    def recipe(self) -> Path:
        """The resolved recipe. It is written last at the start: a directory with a recipe is a run."""
        return self.run_directory / "recipe.toml"

    @property
    def lock(self) -> Path:
        """The lock file: the process that trains the run holds its lock."""
        return self.run_directory / "lock"

    @property
    def metrics(self) -> Path:
        """Metrics, one line per iteration. A run that is repeated on a CPU writes equal bytes."""
        return self.run_directory / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        """Timings, one line per iteration: clock, speed, memory."""
        return self.run_directory / "timings.jsonl"

    @property
    def samples(self) -> Path:
        """The folder with the samples of each iteration."""
        return self.run_directory / "samples"

    @property
    def sample_hashes(self) -> Path:
        """The SHA-256 of each file in samples/, in `sha256sum` format."""
        return self.run_directory / "samples.sha256"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, one folder per iteration."""
        return self.run_directory / "checkpoints"

    @property
    def replay(self) -> Path:
        """The folder of the replay log: replies of environments, one file per iteration."""
        return self.run_directory / "replay"

    @property
    def skipped(self) -> Path:
        """The folder with the batches of skipped optimizer steps."""
        return self.run_directory / "skipped"

    @property
    def model(self) -> Path:
        """The trained model or adapter, in Hugging Face layout."""
        return self.run_directory / "model"

    @property
    def models(self) -> Path:
        """The folder with models of iterations, one directory each, written by `save.export_every` or `eval --at`."""
        return self.run_directory / "models"

    @property
    def logs(self) -> Path:
        """The folder with the output of the run's other processes: ranks, and engines that it starts."""
        return self.run_directory / "logs"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.run_directory / "report.html"

    @property
    def evaluations(self) -> Path:
        """The folder for evaluations of the run's models."""
        return self.run_directory / "evaluations"

    @property
    def whatif(self) -> Path:
        """The folder of comparisons of methods on the run's samples, one JSON file per iteration."""
        return self.run_directory / "whatif"

    @property
    def tensorboard(self) -> Path:
        """The folder of the tracker TensorBoard."""
        return self.run_directory / "tensorboard"

    @property
    def warm_start(self) -> Path:
        """The folder of the supervised phase, itself a `RunLayout`."""
        return self.run_directory / "warm_start"

    @property
    def data(self) -> Path:
        """The data rows given to `groupwise.train`, as JSON lines."""
        return self.run_directory / "data.jsonl"

    @property
    def agents(self) -> Path:
        """The folder with the output of each run of an agent that is a program."""
        return self.run_directory / "agents"

    @property
    def code(self) -> Path:
        """The folder with the source files of the Python reward functions given to `groupwise.train`."""
        return self.run_directory / "code"

    @property
    def is_run(self) -> bool:
        """Whether the directory is a run: it has a recipe."""
        return self.recipe.is_file()

    def phase(self, index: int, name: str) -> Path:
        """The folder of a phase, itself a run. Phases are numbered from 1."""
        return self.run_directory / f"{index}-{name}"

    def checkpoint(self, iteration: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / numbered(iteration)

    def model_at(self, iteration: int) -> Path:
        """The directory of the model after one iteration."""
        return self.models / numbered(iteration)

    def replay_log(self, iteration: int) -> Path:
        """The replay log of one iteration."""
        return self.replay / f"{numbered(iteration)}.jsonl"

    def sample_file(self, iteration: int, suffix: str) -> Path:
        """One of the files of an iteration in samples/."""
        return self.samples / f"{numbered(iteration)}{suffix}"

    def log(self, process: str) -> Path:
        """The output of the process with this name, such as `rank 1`."""
        return log_file(self.logs, process)

    def comparison(self, iteration: int) -> Path:
        """The comparison of methods on the samples of one iteration, a file of whatif/."""
        return self.whatif / f"{numbered(iteration)}.json"


def log_file(folder: Path, process: str) -> Path:
    """The file with the output of a process, in a folder of logs.

    >>> log_file(Path("logs"), "rank 1").as_posix()
    'logs/rank-1.log'
    """
    return folder / f"{process.replace(' ', '-')}.log"


def numbered(iteration: int) -> str:
    """An iteration in a file name: six digits, or more.

    >>> numbered(12)
    '000012'
    """
    return f"{iteration:06d}"


def iteration_files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    """(iteration, path) of the files that belong to an iteration, in order. Other files are left out."""
    paths = [p for p in folder.glob("*") if p.suffix in suffixes and re.fullmatch(r"\d{6,}", p.stem)]
    yield from sorted((int(path.stem), path) for path in paths)
