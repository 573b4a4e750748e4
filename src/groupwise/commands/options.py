"""Options of several commands, and the types of their values. A command's own options are in `command_table`."""

import re
from argparse import ArgumentTypeError
from typing import Any, NoReturn

# Types


def seconds(text: str) -> float:
    """Parse a duration such as `90`, `90s`, `30m`, `2h`, `1h30m` to seconds.

    >>> seconds("1h30m")
    5400.0
    """
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", text)
    try:
        parts = [float(part) for part in match.groups(default="0")] if match and text else invalid_time(text)
    except ValueError:
        invalid_time(text)
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def invalid_time(text: str) -> NoReturn:
    """Raise the error for a duration that cannot be parsed."""
    raise ArgumentTypeError(f"{text!r} is not a time: write 90s, 30m, 2h or 1h30m")


def iteration(text: str) -> int | str:
    """Parse an iteration: its number, or `best` for the best checkpoint."""
    if text != "best" and not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is neither the number of an iteration nor best")
    return text if text == "best" else int(text)


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


# Options of several commands

Option = tuple[tuple[str, ...], dict[str, Any]]
"""The arguments of `add_argument` for one option or positional argument."""


def option(*names: str, **settings: Any) -> Option:
    """Declare one option, or one positional argument, of a command."""
    return names, settings


FILE = option("recipe", nargs="?", metavar="RECIPE.toml", help="default: the packaged recipe")
NAMED = option(
    "--recipe", dest="recipe_name", metavar="NAME", help="a packaged recipe, such as big_sums, programs or hinted_sums"
)
AT = option(
    "--at",
    type=iteration,
    metavar="K",
    help="the checkpoint of this iteration, or best (default: the finished model, else the newest checkpoint)",
)
STOP = option(
    "--stop-after",
    dest="stop_after_seconds",
    type=seconds,
    metavar="2h",
    help="save and end after this time: 90s, 30m, 1h30m",
)
PUSH = option(
    "--push",
    default="",
    metavar="OWNER/NAME",
    help="upload the model to the Hugging Face hub; a new repository is private",
)
USE = option(
    "--use",
    action="append",
    default=[],
    metavar="FILE.py",
    help="a file with code that the recipe names; it is executed",
)
UNSAFE = option(
    "--unsafe-local-exec",
    action="store_true",
    help="run code that the model writes without a sandbox, with your rights",
)
TRUST = option(
    "--trust-remote-code", action="store_true", help="execute Python files in the model's directory, with your rights"
)
KEY = option(
    "--key",
    dest="keys",
    action="append",
    default=[],
    metavar="NAME",
    help="an environment variable whose value may be sent to an LLM judge of the recipe",
)
JUDGE = option(
    "--judge",
    dest="judges",
    action="append",
    default=[],
    metavar="HOST",
    help="a host to which an LLM judge of the recipe may send problems and answers",
)
ENGINE_PYTHON = option(
    "--engine-python",
    default="",
    metavar="FILE",
    help="the interpreter of vLLM's environment, which runs the recipe's engines of the kind Vllm",
)
ENGINE_HOST = option(
    "--engine-host",
    dest="engine_hosts",
    action="append",
    default=[],
    metavar="HOST",
    help="a host whose engines, in the recipe's engine.addresses, may get prompts and weights",
)
ENGINE_NCCL = option(
    "--engine-nccl",
    action="append",
    default=[],
    metavar="HOST",
    help="a host of --engine-host whose vLLM engines may get weights by NCCL, which encrypts nothing",
)
ENGINE_SECRET = option(
    "--engine-secret",
    default="",
    metavar="FILE",
    help="the secret of engines at ports, a file of mode 600 (default: $GROUPWISE_SECRET)",
)
ENGINE_EXCHANGE = option(
    "--engine-exchange",
    default="",
    metavar="DIR",
    help="the directory for the weights of engines in other processes, such as /dev/shm (default: temporary files)",
)
AGENT_COMMAND = option(
    "--agent-command",
    default="",
    metavar="COMMAND",
    help="the program that is the agent, such as 'node my-agent.js': it runs for each row, with your rights",
)
ENGINES = (ENGINE_HOST, ENGINE_NCCL, ENGINE_PYTHON, ENGINE_SECRET, ENGINE_EXCHANGE)
"""What engines in other processes may use: no recipe can name it."""
PERMISSIONS = (USE, UNSAFE, TRUST, KEY, JUDGE, *ENGINES, AGENT_COMMAND)
"""The command-line options that give permissions, such as `--use` and `--trust-remote-code`."""
NAMES_OF_MODELS = "a packaged model, a directory, a .gguf file, or OWNER/NAME of the Hugging Face hub"
NAMES_OF_RUNS = "the directory of a run, or its path without the time: the newest run of that name"
MODEL = option("model", metavar="MODEL_OR_RUN", help=f"{NAMES_OF_MODELS}; or a run, by its directory")
RUN = option("run", metavar="RUN", help=NAMES_OF_RUNS)
RUNS = option("run", nargs="+", metavar="RUN", help=NAMES_OF_RUNS)
STORED = option("--iteration", type=count, metavar="K", help="an iteration with samples (default: the newest one)")
JSON = option("--json", dest="as_json", action="store_true", help="print one JSON object")
NEW_MODEL = option("out", metavar="DIR", help="the new model directory; it must not exist")
