"""The commands with their arguments and options, as tables. Each option is declared once."""

import re
from argparse import SUPPRESS, ArgumentTypeError
from dataclasses import dataclass
from typing import Any, NoReturn

RECIPE = """\
fields of a recipe; `--dotted.field value` sets one, `groupwise help FIELD` explains it:
  (top)             model task extra_tasks held_out max_prompt_tokens template system template_arguments verifier
                    threshold environment method prompts iterations seed max_unverifiable trackers
  lora              rank alpha targets
  pipeline          guidance size
  warm_start        demonstrations columns steps per_step optimizer save_every drop_thoughts thought
  warm_start.columns prompt answer
  warm_start.optimizer lr betas eps weight_decay max_grad_norm warmup_steps lr_scheduler
  columns           prompt answer
  method            base group_size curriculum strategy denoise unmask trained_roles filter max_refills unverifiable
                    shaping advantage credit mask objective auxiliary minibatches shuffle epochs old_logprobs
                    router_replay models memory schedules
  method.denoise    noise steps shift first last
  method.unmask     steps temperature spread floor speed
  method.objective  surrogate weights penalties aggregate
  sampling          temperature max_tokens top_p top_k min_p stop
  engine            max_num_seqs kv_cache_tokens max_logprob_diff
  optimizer         lr betas eps weight_decay max_grad_norm warmup_steps lr_scheduler
  machine           device dtype threads microbatch_tokens gradient_checkpointing compile deadline
                    verdict_deadline
  cluster           launch ranks reduction_lanes shard max_staleness deadline
  evaluate          every problems samples strategy by_column best_metric steps
  save              every keep export_every

  groupwise train recipe.toml --method.objective.surrogate.high 0.35 --iterations 50
  groupwise train --task problems.jsonl --verifier last_number
  groupwise train --recipe smollm2
  groupwise train --model DIR --task gsm8k --task.source DIR_OF_GSM8K --template chat
"""

SERVE = """\
  groupwise serve calculator --socket engine.sock
  groupwise train --engine '{ kind = "Served", replicas = 0, addresses = ["engine.sock"] }'

  groupwise serve calculator --listen 0.0.0.0:7000 --secret-file secret      on another host; it prints its address
  groupwise train --engine '{ kind = "Served", addresses = ["host:7000#sha256=..."] }' \\
    --engine-host host --engine-secret secret
"""

SWEEP = """\
values are separated by commas, or a range of whole numbers:
  groupwise sweep recipe.toml --seed 0..4 --method.objective.surrogate.high 0.2,0.28

"""

PLAN = """\
a machine file:
  name = "A100"
  count = 8
  memory_gib = 74.5
  tflops = 125.0
  memory_gb_s = 1500.0
  link_gb_s = 150.0
  rates = "parts of the data sheet's, assumed"

"""

COMPARE = """\
two evaluations can be compared only if their protocols are equal, except for the model, the number of answers, the
seed, the engine and the versions

  groupwise eval runs/A --samples 8
  groupwise eval runs/B --samples 8
  groupwise compare runs/A runs/B
"""

AUDIT = """\
  groupwise audit math
  groupwise audit my_file:grade math --use my_file.py --cases cases.jsonl
rows are such as {"answer": "so \\\\boxed{4}", "gold": "4", "right": true}
"""

CODES = """\
exit codes: 0 success, 1 bug in groupwise, 2 usage, 3 data, 4 missing requirement, 5 training diverged, 6 storage,
7 worker, 8 lock, 130 interrupted, 143 terminated
"""


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
STOP = option("--stop-after", type=seconds, metavar="2h", help="save and end after this time: 90s, 30m, 1h30m")
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
ENGINES = (ENGINE_HOST, ENGINE_PYTHON, ENGINE_SECRET, ENGINE_EXCHANGE)
"""What engines in other processes may use: no recipe can name it."""
PERMISSIONS = (USE, UNSAFE, TRUST, KEY, JUDGE, *ENGINES)
"""The command-line options that give permissions, such as `--use` and `--trust-remote-code`."""
MODEL = option("model", metavar="MODEL_OR_RUN")
RUN = option("run", metavar="RUN")
RUNS = option("run", nargs="+", metavar="RUN")
STORED = option("--iteration", type=count, metavar="K", help="an iteration with samples (default: the newest one)")
JSON = option("--json", dest="as_json", action="store_true", help="print one JSON object")
NEW_MODEL = option("out", metavar="DIR", help="the new model directory; it must not exist")


# Commands


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line. `arguments` are positional. With `fields` it takes `--dotted.field value`."""

    name: str
    help: str
    arguments: tuple[Option, ...] = ()
    options: tuple[Option, ...] = ()
    epilog: str = ""
    fields: bool = False


COMMANDS = (
    Command(
        "train", "train a model with a recipe (default: the packaged recipe)", (FILE,),
        (
            NAMED,
            option("--out", default=SUPPRESS, metavar="DIR", help="parent of the run directory (default: runs)"),
            option("--name", help="name of the run (default: the recipe's name)"),
            STOP, PUSH, *PERMISSIONS,
        ),
        RECIPE, fields=True,
    ),
    Command(
        "sweep", "train a recipe with each combination of some values; again to continue", (FILE,),
        (NAMED, option("--out", metavar="DIR", help="directory of the runs (default: sweeps/RECIPE)"), *PERMISSIONS),
        SWEEP + RECIPE, fields=True,
    ),
    Command(
        "resume", "continue a run from its newest checkpoint", (RUN,),
        (
            option("--strict", action="store_true",
                   help="fail if the newest checkpoint is damaged (default: use the previous one)"),
            option("--changed", action="store_true",
                   help="continue although recipe, tokenizer, template or logs were changed"),
            option("--iterations", type=count, metavar="N", help="extend the run to N iterations"),
            option("--ranks", type=count, metavar="N", help="continue on N processes; N divides the run's lanes"),
            option("--shard", choices=("none", "full"), help="continue with whole or sharded weights in each process"),
            option("--launch", choices=("local", "external", "ray"), help="continue with another cluster.launch"),
            STOP, PUSH, *PERMISSIONS,
        ),
    ),
    Command(
        "eval", "measure the held-out accuracy of a model or a run", (MODEL,),
        (
            AT,
            option("--samples", type=count, metavar="N", help="answers per problem (default: 4, or the preset's)"),
            option("--problems", type=count, metavar="N", help="number of problems (default: the recipe's)"),
            option("--recipe", metavar="RECIPE",
                   help="task and sampling for a model without a run: a file, or a packaged name"),
            option("--preset", metavar="NAME", help="the settings of a paper: aime24-dapo, r1-zero-suite"),
            option("--data", metavar="DIR", help="directory of the preset's problems (default: the hub)"),
            option("--out", metavar="FILE.json", help="output (default: evaluations/ of the run, or here)"),
            *PERMISSIONS,
        ),
        RECIPE, fields=True,
    ),
    Command(
        "sample", "print a model's answers to a prompt, or conversations that start with it",
        (MODEL, option("prompt", metavar="PROMPT")),
        (
            AT,
            option("-n", type=count, default=1, metavar="N", help="number of answers (default: 1, greedy)"),
            option("--answer", metavar="TEXT", help="the gold answer, for an environment that needs it"),
            option("--out", metavar="FILE.png",
                   help="the file for the pictures of a flow model (default: sample.png)"),
            USE, UNSAFE, TRUST,
        ),
        RECIPE, fields=True,
    ),
    Command("chat", "talk to a model, line by line; Ctrl-D ends", (MODEL,), (USE, TRUST), RECIPE, fields=True),
    Command(
        "serve", "run a model's engine in a separate process, on a Unix socket or for other hosts; Ctrl-C ends",
        (option("model", metavar="MODEL"),),
        (
            option("--socket", default="", metavar="FILE", help="the new socket, which only you can connect to"),
            option("--listen", default="", metavar="HOST:PORT",
                   help="in place of a socket: for other hosts, by TLS; port 0 is a free one"),
            option("--secret-file", default="", metavar="FILE",
                   help="the secret of the trainer and its engines, a file of mode 600 (default: $GROUPWISE_SECRET)"),
            option("--key", default="", metavar="FILE",
                   help="the file of the TLS key, made if it is missing (default: a new key, and so a new address)"),
            option("--dtype", default="float32", choices=("float32", "bfloat16", "float64"),
                   help="dtype of the weights (default: float32)"),
            option("--seed", type=int, default=0, metavar="N", help="the recipe's seed (default: 0)"),
            option("--threads", type=count, default=1, metavar="N", help="the recipe's machine.threads (default: 1)"),
            option("--device", default="auto", metavar="NAME", help="cpu, cuda or cuda:N (default: auto)"),
            option("--rows", type=count, default=256, metavar="N", help="sequences at a time (default: 256)"),
            option("--kv-cache-tokens", type=count, default=1 << 20, metavar="N",
                   help="tokens in the cache of keys and values (default: 1048576)"),
            option("--engine", default="Native", choices=("Native", "Vllm"), help="the engine (default: Native)"),
            ENGINE_PYTHON,
        ),
        SERVE,
    ),
    Command(
        "report", "write the report of a run, or of several runs in one page", (RUNS,),
        (option("--out", metavar="FILE.html", help="output file (default: report.html in the first run)"),),
    ),
    Command(
        "watch", "show the report of runs as a live page in a browser on this machine", (RUNS,),
        (option("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)"),),
    ),
    Command(
        "whatif", "compare methods on a run's stored samples: rewards, advantages, clips, gradients", (RUN,),
        (
            STORED,
            option("--methods", default="grpo,dapo,gspo", metavar="A,B",
                   help="published methods (default: grpo,dapo,gspo)"),
            option("--group", type=count, metavar="G", help="the numbers of each sample of this group, from 1"),
            option("--report", dest="in_report", action="store_true", help="show the comparison in the run's report"),
            JSON, USE,
        ),
    ),
    Command(
        "explain", "print how one token of a stored sample gets its gradient, from its outcome on", (RUN,),
        (
            STORED,
            option("--sample", type=count, required=True, metavar="I", help="a line of the samples file, from 1"),
            option("--token", type=count, required=True, metavar="T", help="a token of the sample, from 1"),
            option("--method", default="", metavar="NAME", help="a published method (default: the run's own)"),
            JSON, USE,
        ),
    ),
    Command(
        "export", "write the model of a run, or of one of its checkpoints, to a directory", (RUN, NEW_MODEL),
        (
            AT,
            option("--dtype", default="", choices=("float32", "bfloat16", "float64"), help="dtype of the weights"),
            PUSH, TRUST,
        ),
    ),
    Command(
        "merge", "merge an adapter (LoRA) into its base model",
        (option("model", metavar="ADAPTER_OR_RUN"), NEW_MODEL), (TRUST,),
    ),
    Command(
        "compare", "compare two evaluations on the same problems",
        (option("a", metavar="A", help="an evaluated run, or a file that eval wrote"), option("b", metavar="B")),
        (
            option("--allow", action="append", default=[], metavar="FIELD",
                   help="a field of the protocol that may differ, such as sampling.top_p"),
        ),
        COMPARE,
    ),
    Command(
        "audit", "measure the error rates of verifiers on labelled answers",
        (
            option("verifier", nargs="+", metavar="VERIFIER",
                   help="as in --verifier; the errors of the first are listed"),
        ),
        (
            option("--cases", metavar="FILE.jsonl", help="your cases (default: the verifier's packaged cases)"),
            option("--list", type=count, default=10, metavar="N", help="listed errors of each kind (default: 10)"),
            option("--families", action="store_true", help="also count the errors in each family of answers"),
            USE, UNSAFE, KEY, JUDGE,
        ),
        AUDIT,
    ),
    Command(
        "help", "print the meaning, type, unit, default and an example of a recipe's field",
        (option("field", nargs="?", default="", metavar="FIELD", help="a dotted name (default: list all)"),),
    ),
    Command(
        "methods", "list the published methods by family, with what each changes in its parent", (),
        (
            option("--family", default="", metavar="FAMILY", help="only this family, such as ratio"),
            option("--like", default="", metavar="NAME", help="only methods that change what NAME changes"),
            option("--map", metavar="FILE.html", help="write the family tree and the parts of all methods as a page"),
        ),
    ),
    Command(
        "completion", "print a script that completes commands, options and fields in your shell",
        (option("shell", choices=("bash", "zsh", "fish")),),
    ),
    Command(
        "show", "print a method with its paper, constants, differences and proofs; or a recipe in full",
        (option("what", metavar="NAME|FILE"),),
    ),
    Command(
        "certify", "run the tests that prove a method, and write its certificate as JSON and HTML",
        (option("name", metavar="NAME|all"),),
        (
            option("--out", default="certificates", metavar="DIR", help="directory (default: certificates)"),
            option("--effect", action="store_true", help="measure the stated effect first, which takes minutes"),
        ),
    ),
    Command(
        "diff", "print the differences between two methods or two recipes",
        (option("a", metavar="A"), option("b", metavar="B")),
    ),
    Command(
        "doctor", "check this machine, and print how to install what is missing", (), (JSON, ENGINE_PYTHON),
    ),
    Command(
        "plan", "predict a run's memory and seconds on given machines, and the best split of the devices", (FILE,),
        (
            NAMED,
            option("--machines", default="", metavar="FILE.toml", help="number, memory and rates of the devices"),
            option("--rates", default="", metavar="RUN", help="calibrate the seconds by a finished run on one device"),
            option("--svg", default="", metavar="FILE.svg", help="write the timeline of two iterations as an image"),
            JSON, USE, UNSAFE, TRUST,
        ),
        PLAN + RECIPE, fields=True,
    ),
    Command(
        "check", "print all errors of a recipe, in seconds, without loading weights", (FILE,), (NAMED, *PERMISSIONS),
        RECIPE, fields=True,
    ),
)  # fmt: skip
