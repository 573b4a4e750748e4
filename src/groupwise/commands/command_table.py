"""The commands with their arguments and options, as tables. Each option is declared once."""

from argparse import SUPPRESS
from dataclasses import dataclass

from groupwise.commands.options import (
    AGENT_COMMAND,
    AT,
    ENGINE_PYTHON,
    FILE,
    JSON,
    JUDGE,
    KEY,
    MODEL,
    NAMED,
    NAMES_OF_MODELS,
    NEW_MODEL,
    PERMISSIONS,
    PUSH,
    RUN,
    RUNS,
    STOP,
    STORED,
    TRUST,
    UNSAFE,
    USE,
    Option,
    count,
    option,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line. `arguments` are positional. With `fields` it takes `--dotted.field value`.

    `permission_options` are options by which the user allows it to run code, read secrets or reach hosts.
    """

    name: str
    help: str
    arguments: tuple[Option, ...] = ()
    options: tuple[Option, ...] = ()
    permission_options: tuple[Option, ...] = ()
    takes_recipe_fields: bool = False


COMMANDS = (
    Command(
        "train", "train a model with a recipe (default: the packaged recipe)", (FILE,),
        (
            NAMED,
            option("--out", default=SUPPRESS, metavar="DIR", help="parent of the run directory (default: runs)"),
            option("--name", help="name of the run (default: the recipe's name)"),
            STOP, PUSH,
        ),
        PERMISSIONS, takes_recipe_fields=True,
    ),
    Command(
        "sweep", "train a recipe with each combination of some values; again to continue", (FILE,),
        (NAMED, option("--out", metavar="DIR", help="directory of the runs (default: sweeps/RECIPE)")),
        PERMISSIONS, takes_recipe_fields=True,
    ),
    Command(
        "resume", "continue a run from its newest checkpoint", (RUN,),
        (
            option("--strict", dest="strict_checkpoints", action="store_true",
                   help="fail if the newest checkpoint is damaged (default: use the previous one)"),
            option("--changed", dest="accept_changes", action="store_true",
                   help="continue although recipe, tokenizer, template or logs were changed"),
            option("--iterations", type=count, metavar="N", help="extend the run to N iterations"),
            option("--ranks", type=count, metavar="N", help="continue on N processes; N divides the run's lanes"),
            option("--shard", choices=("none", "full"), help="continue with whole or sharded weights in each process"),
            option("--launch", choices=("local", "external", "ray"), help="continue with another cluster.launch"),
            STOP, PUSH,
        ),
        PERMISSIONS,
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
            option("--preset-data", metavar="DIR", help="directory of the preset's problems (default: the hub)"),
            option("--out", metavar="FILE.json", help="output (default: evaluations/ of the run, or here)"),
        ),
        PERMISSIONS, takes_recipe_fields=True,
    ),
    Command(
        "sample", "print a model's answers to a prompt, or conversations that start with it",
        (MODEL, option("prompt", metavar="PROMPT", help="the text of the problem, as in a data row")),
        (
            AT,
            option("-n", type=count, default=1, metavar="N", help="number of answers (default: 1, greedy)"),
            option("--answer", metavar="TEXT", help="the gold answer, for an environment that needs it"),
            option("--image", dest="images", action="append", default=[], metavar="FILE",
                   help="a picture before the prompt, for a vision-language model; repeat it for several"),
            option("--out", metavar="FILE.png",
                   help="the file for the pictures of a flow model (default: sample.png)"),
        ),
        (USE, UNSAFE, TRUST, AGENT_COMMAND), takes_recipe_fields=True,
    ),
    Command("chat", "talk to a model, line by line; Ctrl-D ends", (MODEL,), (), (USE, TRUST), takes_recipe_fields=True),
    Command(
        "serve", "run a model's engine in a separate process, on a Unix socket or for other hosts; Ctrl-C ends",
        (option("model", metavar="MODEL", help=NAMES_OF_MODELS),),
        (
            option("--socket", default="", metavar="FILE", help="the new socket, which only you can connect to"),
            option("--listen", default="", metavar="HOST:PORT",
                   help="in place of a socket: for other hosts, by TLS; port 0 is a free one"),
            option("--secret-file", default="", metavar="FILE",
                   help="the secret of the trainer and its engines, a file of mode 600 (default: $GROUPWISE_SECRET)"),
            option("--key", dest="tls_key_file", default="", metavar="FILE",
                   help="the file of the TLS key, made if it is missing (default: a new key, and so a new address)"),
            option("--nccl", action="store_true",
                   help="with --engine Vllm and --listen: also take weights by NCCL, which encrypts nothing"),
            option("--dtype", default="float32", choices=("float32", "bfloat16", "float64"),
                   help="dtype of the weights (default: float32)"),
            option("--seed", type=int, default=0, metavar="N", help="the recipe's seed (default: 0)"),
            option("--threads", type=count, default=1, metavar="N", help="the recipe's machine.threads (default: 1)"),
            option("--device", default="auto", metavar="NAME", help="cpu, cuda or cuda:N (default: auto)"),
            option("--replicas", type=count, default=1, metavar="N",
                   help="engines, each on its own GPUs and at the next port or socket (default: 1)"),
        ),
        (ENGINE_PYTHON,), takes_recipe_fields=True,
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
            JSON,
        ),
        (USE,),
    ),
    Command(
        "explain", "print how one token of a stored sample gets its gradient, from its outcome on", (RUN,),
        (
            STORED,
            option("--sample", type=count, required=True, metavar="I", help="a line of the samples file, from 1"),
            option("--token", type=count, required=True, metavar="T", help="a token of the sample, from 1"),
            option("--method", default="", metavar="NAME", help="a published method (default: the run's own)"),
            JSON,
        ),
        (USE,),
    ),
    Command(
        "export", "write the model of a run, or of one of its checkpoints, to a directory", (RUN, NEW_MODEL),
        (
            AT,
            option("--dtype", default="", choices=("float32", "bfloat16", "float64"), help="dtype of the weights"),
            PUSH,
        ),
        (TRUST,),
    ),
    Command(
        "merge", "merge an adapter (LoRA) into its base model",
        (
            option("model", metavar="ADAPTER_OR_RUN", help="the directory of an adapter, or of a run that trained one"),
            NEW_MODEL,
        ),
        (), (TRUST,),
    ),
    Command(
        "compare", "compare two evaluations on the same problems",
        (
            option("a", metavar="A", help="an evaluated run, or a file that eval wrote"),
            option("b", metavar="B", help="the other one"),
        ),
        (
            option("--allow", action="append", default=[], metavar="FIELD",
                   help="a field of the protocol that may differ, such as sampling.top_p"),
        ),
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
        ),
        (USE, UNSAFE, KEY, JUDGE),
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
            option("--map", metavar="FILE.html", help="write family tree and components of all methods as a page"),
        ),
    ),
    Command(
        "completion", "print a script that completes commands, options and fields in your shell",
        (option("shell", choices=("bash", "zsh", "fish"), help="your shell"),),
    ),
    Command(
        "show", "print a method with its paper, constants, differences and proofs; or a recipe in full",
        (option("what", metavar="NAME|FILE", help="a method, a recipe of the package or in a file, or a run"),),
    ),
    Command(
        "certify", "run the tests that prove a method, and write its certificate as JSON and HTML",
        (option("name", metavar="NAME|all", help="a published method, or all of them"),),
        (
            option("--out", default="certificates", metavar="DIR", help="directory (default: certificates)"),
            option("--effect", action="store_true", help="measure the stated effect first, which takes minutes"),
        ),
    ),
    Command(
        "diff", "print the differences between two methods or two recipes",
        (option("a", metavar="A", help="a method, a recipe or a run"), option("b", metavar="B", help="the other one")),
    ),
    Command(
        "doctor", "check this machine, and print how to install what is missing", (), (JSON,), (ENGINE_PYTHON,),
    ),
    Command(
        "plan", "predict a run's memory and seconds, here or on other machines, and the best split", (FILE,),
        (
            NAMED,
            option("--machines", default="", metavar="CARD|FILE.toml",
                   help="a card such as a100, 8xh100 or rtx4090, also several, or 2x8xh100 for two hosts; or a file "
                   "(default: this machine)"),
            option(
                "--rates", default="", metavar="RUN",
                help="calibrate by a finished run on one device, or by one that sent weights to other hosts",
            ),
            option("--svg", default="", metavar="FILE.svg", help="write the timeline of two iterations as an image"),
            option("--all-splits", dest="every_split", action="store_true",
                   help="also plan splits of the devices that this version does not run, and mark them"),
            JSON,
        ),
        (USE, UNSAFE, TRUST), takes_recipe_fields=True,
    ),
    Command(
        "check", "print all errors of a recipe, in seconds, without loading weights", (FILE,), (NAMED,), PERMISSIONS,
        takes_recipe_fields=True,
    ),
)  # fmt: skip
