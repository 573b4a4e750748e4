"""run.json describes a run: its command, versions, and the hashes of its data and model."""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from groupwise.core import Storage
from groupwise.runs.run_layout import RunLayout

EXTENSION = re.compile(r"recipe\.iterations: (\d+) -> (\d+)")
"""Pattern of a recorded change that extends a run to more iterations."""
FORMAT = 3
"""The format of run directories, which a change of their files or names raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The content of run.json. Optional fields are left out of the file while they are empty."""

    format: int = FORMAT
    name: str
    command: str
    versions: dict[str, str]
    model: str
    model_commit: str = ""
    task: str
    method: dict[str, Any]
    """The published method that the recipe starts from, and the recipe's changes to it."""
    seed: int
    device: str = ""
    """The device of the weights, which `machine.device = "auto"` may have chosen."""
    iterations: int
    use: dict[str, str]
    """SHA-256 of the user's files by name without `.py`, and of files that they import from their folder."""
    in_memory: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the source of each function that the calling program held in memory, by name."""
    keys: tuple[str, ...] = ()
    """Names of the environment variables with API keys that may be sent to an LLM judge."""
    judges: tuple[str, ...] = ()
    """Hosts to which an LLM judge may send requests."""
    engine_hosts: tuple[str, ...] = ()
    """Hosts whose engines get prompts and weights."""
    engine_nccl: tuple[str, ...] = ()
    """Those of them that get weights by NCCL."""
    engine_python: str = ""
    """The interpreter of vLLM's environment."""
    engine_secret: str = ""
    """The path of the file with the engines' secret."""
    engine_exchange: str = ""
    """The directory for the weights that local engines read."""
    agent_command: str = ""
    """The command of the program that is the agent."""
    unsafe_local_exec: bool = False
    trust_remote_code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the model's Python files by name, if their execution was allowed."""
    data: tuple[dict[str, Any], ...]
    """Row counts and SHA-256 of each source of problems and demonstrations."""
    adapter: str = ""
    base_sha256: str = ""
    """SHA-256 of the base weights, if an adapter is trained."""
    side_models: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files of each model in `method.models` that is read from a directory, by the model's name."""
    reward_models: tuple[str, ...] = ()
    """SHA-256 of the files of each reward model in the verifiers, in their order."""
    recipe: str
    """The text of recipe.toml that the run was started with, or that a resume accepted."""
    files: dict[str, str]
    """SHA-256 of the model's configuration and tokenizer files by name."""
    templates: dict[str, str]
    """SHA-256 of the templates by name."""
    changes: tuple[dict[str, Any], ...] = ()
    """Changes that a resume accepted: the iteration, and one line per change."""
    stopped: str = ""
    """Why the run ended before its last iteration, if it ended by itself: `interrupted`, `out of time`, a callback."""

    @classmethod
    def read(cls, layout: RunLayout) -> "RunInfo":
        """Read a run's run.json. Raises `Storage` if it cannot be read, lacks a field, or has another format."""
        path = layout.info
        try:
            value = json.loads(path.read_text())
            check_format(layout.run_directory, value.get("format"))
            known = {f.name for f in fields(cls)}
            return cls(**{name: _frozen(item) for name, item in value.items() if name in known})
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            fix = "restore the file from a copy, or start the run again"
            raise Storage(f"{path} cannot be read", evidence=str(error), fix=fix) from error

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, without empty optional ones."""
        return {name: value for name, value in asdict(self).items() if value or name not in OPTIONAL}


OPTIONAL = frozenset(
    (
        "model_commit",
        "device",
        "keys",
        "judges",
        "engine_hosts",
        "engine_nccl",
        "engine_python",
        "engine_secret",
        "engine_exchange",
        "agent_command",
        "unsafe_local_exec",
        "trust_remote_code",
        "adapter",
        "base_sha256",
        "side_models",
        "reward_models",
        "in_memory",
        "stopped",
    )
)
"""Fields that are left out of run.json if they are empty."""


def extensions(changes: Any) -> list[tuple[int, int, int]]:
    """The extensions of a run to more iterations: (at which iteration, old number, new number) each.

    Entries of another form are left out.

    >>> extensions([{"iteration": 60, "changes": ["recipe.iterations: 60 -> 100"]}])
    [(60, 60, 100)]
    """
    found = []
    for entry in changes if isinstance(changes, list | tuple) else ():
        lines = entry.get("changes") if isinstance(entry, dict) else None
        matches = (EXTENSION.fullmatch(str(line)) for line in (lines if isinstance(lines, list | tuple) else ()))
        found += [(entry.get("iteration"), int(match[1]), int(match[2])) for match in matches if match]
    return found


def check_format(run: Path, version: object) -> None:
    """Raise `Storage` unless a run.json has the format of this version."""
    if version != FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        raise Storage(
            f"{run} was written by {'a newer' if newer else 'another'} version of Groupwise",
            evidence=f"format {version}; this version reads format {FORMAT}",
            fix="upgrade: pip install --upgrade groupwise" if newer else "use that version, or start a new run",
        )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
