"""The command line. A command's modules are imported only when it runs, so that every `--help` is fast."""

import argparse
import errno
import re
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

RECIPE = """\
fields of a recipe; `--dotted.field value` sets one, `groupwise help FIELD` explains it:
  (top)             model task also held_out template system template_arguments verifier threshold environment method
                    prompts iterations seed max_unverifiable sinks
  lora              rank alpha targets
  warm_start        demonstrations columns steps per_step optimizer save_every
  warm_start.columns prompt answer
  warm_start.optimizer lr betas eps weight_decay clip warmup decay
  columns           prompt answer
  method            base group_size curriculum strategy trains filter refill unverifiable shaping advantage credit
                    mask objective auxiliary minibatches shuffle epochs proximal routing models memory schedules
  method.objective  surrogate weights penalties aggregate
  method.routing    replay
  sampling          temperature max_tokens top_p top_k min_p stop
  engine            rows cache_tokens max_gap
  optimizer         lr betas eps weight_decay clip warmup decay
  machine           device dtype threads microbatch_tokens recompute compile deadline verdict_deadline
  evaluate          every problems samples strategy best
  save              every keep model_every

  groupwise train recipe.toml --method.objective.surrogate.high 0.35 --iterations 50
  groupwise train --task problems.jsonl --verifier last_number
  groupwise train --recipe smollm2
  groupwise train --model DIR --task gsm8k:DIR_OF_GSM8K --template chat
"""

SWEEP = """\
values are separated by commas, or a range of whole numbers:
  groupwise sweep recipe.toml --seed 0..4 --method.objective.surrogate.high 0.2,0.28

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error can still be reported
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has closed it
        sys.stdout = None  # type: ignore[assignment]
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            return bug(words)
        sys.stdout = None  # type: ignore[assignment]
        print("error: the output could not be written: no space left on its disk", file=sys.stderr)
        return 6
    except Exception as error:
        code = getattr(error, "code", None)
        if isinstance(code, int) and hasattr(error, "fix"):  # a GroupwiseError, recognised without importing its room
            print(f"error: {error}", file=sys.stderr)
            return code
        return bug(words)


def bug(words: list[str]) -> int:
    """Print the current unexpected exception (not a GroupwiseError), and how to report it as a bug."""
    from groupwise.data import visible

    request = "this is a bug in groupwise: please open an issue with the lines above and the command"
    print(visible(traceback.format_exc(), lines=True) + request, file=sys.stderr)
    print(visible(f"  groupwise {shlex.join(words)}"), file=sys.stderr)
    return 1


def run(words: list[str]) -> int:
    """Parse the arguments, run the command, and return the exit code."""
    table, options = parser()
    a, overrides = parse(table, options, words)
    if a.version:
        from importlib.metadata import version

        print(f"groupwise {version('groupwise')}")
        return 0
    if a.command is None:
        table.print_help()
        return 0
    if a.command in ("methods", "help", "completion"):
        return print_text(a)
    if a.command != "check":  # which prints all problems of a recipe together
        check_options(overrides)
    name_runs(a)
    if a.command in ("report", "watch", "compare", "show", "diff", "check", "doctor", "recipe", "certify"):
        return inspect(a, overrides)
    from groupwise.commands import train

    match a.command:
        case "train":
            return train.train(a.recipe, overrides, a.use, recipe_name=a.recipe_name, out=a.out, name=a.name,
                               stop_after=a.stop_after, command=shlex.join(["groupwise", *words]), push=a.push,
                               unsafe_local_exec=a.unsafe_local_exec, trust_remote_code=a.trust_remote_code,
                               keys=a.key, judges=a.judge)  # fmt: skip
        case "resume":
            return train.resume(a.run, a.use, strict=a.strict, changed=a.changed, iterations=a.iterations, push=a.push,
                                stop_after=a.stop_after, unsafe_local_exec=a.unsafe_local_exec,
                                trust_remote_code=a.trust_remote_code, keys=a.key, judges=a.judge)  # fmt: skip
        case "sweep":
            from groupwise.commands.sweep import sweep

            return sweep(a.recipe, overrides, a.use, recipe_name=a.recipe_name, out=a.out,
                         unsafe_local_exec=a.unsafe_local_exec, trust_remote_code=a.trust_remote_code,
                         keys=a.key, judges=a.judge)  # fmt: skip
        case "export":
            from groupwise.commands.export import export_model

            return export_model(
                a.run, a.out, at=a.at, dtype=a.dtype, push=a.push, trust_remote_code=a.trust_remote_code
            )
        case "merge":
            from groupwise.commands.merge import merge_adapter

            return merge_adapter(a.model, a.out, trust_remote_code=a.trust_remote_code)
        case "audit":
            from groupwise.commands.audit import audit

            return audit(a.verifier, a.use, cases_path=a.cases, listed=a.list, unsafe_local_exec=a.unsafe_local_exec,
                         keys=a.key, judges=a.judge)  # fmt: skip
    from groupwise.commands import evaluate

    match a.command:
        case "eval":
            return evaluate.evaluate(a.model, overrides, a.use, at=a.at, samples=a.samples, problems=a.problems,
                                     recipe_path=a.recipe, preset=a.preset, data=a.data, out=a.out,
                                     unsafe_local_exec=a.unsafe_local_exec,
                                     trust_remote_code=a.trust_remote_code, keys=a.key, judges=a.judge)  # fmt: skip
        case "sample":
            return evaluate.sample(a.model, a.prompt, overrides, a.use, at=a.at, n=a.n, answer=a.answer,
                                   unsafe_local_exec=a.unsafe_local_exec,
                                   trust_remote_code=a.trust_remote_code)  # fmt: skip
        case "chat":
            from groupwise.commands.chat import chat

            return chat(a.model, overrides, a.use, trust_remote_code=a.trust_remote_code)
    raise AssertionError(a.command)


def check_options(overrides: Sequence[tuple[str, str]]) -> None:
    """Raise the error of misspelled fields before torch is imported."""
    if overrides:
        from groupwise.config.problems import check_names

        check_names(path for path, _ in overrides)


def name_runs(a: argparse.Namespace) -> None:
    """Replace a run's name without its time by the newest such run: `runs/first`, or `first` if only runs are valid."""
    from groupwise.runs.stems import newest_run

    only_runs = a.command in ("resume", "report", "watch", "compare")
    for argument in ("run", "model", "what", "a", "b"):
        value = getattr(a, argument, None)
        names = [value] if isinstance(value, str) else value or []
        runs = [newest_run(name) if only_runs or "/" in name else name for name in names]
        if runs:
            setattr(a, argument, runs[0] if isinstance(value, str) else runs)


def print_text(a: argparse.Namespace) -> int:
    """Run `methods`, `completion` and the other commands that only print packaged text, without importing torch."""
    from groupwise.data import visible

    match a.command:
        case "methods":
            from groupwise.commands.methods import list_methods

            print(visible(list_methods(a.family, a.like), lines=True))
        case "completion":
            from groupwise.commands.completion import completion_script

            print(visible(completion_script(a.shell, a.commands), lines=True), end="")
        case "help":
            from groupwise.commands.field_help import explain

            return explain(a.field)
    return 0


def inspect(a: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run a command that needs neither weights nor an engine. `report` and `compare` import no torch."""
    if a.command == "report":
        from groupwise.report.report import report

        return report(a.run, a.out)
    if a.command == "watch":
        from groupwise.commands.watch import watch

        return watch(a.run, a.port)
    if a.command == "compare":
        from groupwise.commands.compare import compare

        return compare(a.a, a.b, a.allow)
    if a.command == "recipe":
        from groupwise.commands.recipe import upgrade

        return upgrade(a.file)
    if a.command == "certify":
        from groupwise.commands.certify import write_certificates

        return write_certificates(a.name, a.out)
    from groupwise.commands import show as views
    from groupwise.data import visible

    match a.command:
        case "show":
            print(visible(views.show(a.what), lines=True))
        case "diff":
            print(visible(views.show_diff(a.a, a.b), lines=True))
        case "doctor":
            from groupwise.commands import doctor

            findings = doctor.examine()
            print(visible(doctor.as_json(findings) if a.json else doctor.as_text(findings), lines=True))
        case "check":
            from groupwise.config.packaged import given_recipe
            from groupwise.config.user_code import load_use
            from groupwise.training.check import check

            loaded = load_use(a.use, unsafe_local_exec=a.unsafe_local_exec, trust_remote_code=a.trust_remote_code,
                              keys=a.key, judges=a.judge)  # fmt: skip
            path = given_recipe(a.file, a.recipe_name)
            problems = check(path, overrides, loaded, lambda line: print(visible(line)))
            print(visible(views.show_check(a.file or a.recipe_name or "recipe", problems), lines=True))
            return problems[0].code if problems else 0
    return 0


def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The argument parser of all commands; those that take recipe fields also accept `--dotted.field value`."""
    table = argparse.ArgumentParser(
        prog="groupwise",
        description="Reinforcement-learning post-training of language models with verifiable rewards.",
        epilog=CODES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("--version", action="store_true", help="print the version and exit")
    commands = table.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    options = {
        name: argparse.ArgumentParser(prog=f"groupwise {name}", add_help=False, allow_abbrev=False)
        for name in ("train", "eval", "sample", "chat", "check", "sweep")
    }

    def add(name: str, help: str, epilog: str = "") -> argparse.ArgumentParser:
        parents = [options[name]] if name in options else []
        return commands.add_parser(
            name,
            parents=parents,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    use = {
        "action": "append",
        "default": [],
        "metavar": "FILE.py",
        "help": "a file with code that the recipe names; it is executed",
    }

    def unsafe(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--unsafe-local-exec",
            action="store_true",
            help="run code that the model writes without a sandbox, with your rights",
        )

    def at(command: argparse.ArgumentParser) -> None:
        which = "the checkpoint of this iteration, or best (default: the finished model, else the newest checkpoint)"
        command.add_argument("--at", type=iteration, metavar="K", help=which)

    def push(command: argparse.ArgumentParser) -> None:
        which = "upload the model to the Hugging Face hub; a new repository is private"
        command.add_argument("--push", default="", metavar="OWNER/NAME", help=which)

    def trust(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--trust-remote-code",
            action="store_true",
            help="execute Python files in the model's directory, with your rights",
        )

    def access(command: argparse.ArgumentParser) -> None:
        key = "an environment variable whose value may be sent to an LLM judge of the recipe"
        command.add_argument("--key", action="append", default=[], metavar="NAME", help=key)
        judge = "a host to which an LLM judge of the recipe may send problems and answers"
        command.add_argument("--judge", action="append", default=[], metavar="HOST", help=judge)

    stop = {"type": seconds, "metavar": "2h", "help": "save and end after this time: 90s, 30m, 1h30m"}

    train_options = options["train"]
    packaged = "a packaged recipe, such as big_sums, programs or hinted_sums"
    train_options.add_argument("--recipe", dest="recipe_name", metavar="NAME", help=packaged)
    train_options.add_argument(
        "--out", default="runs", metavar="DIR", help="parent of the run directory (default: runs)"
    )
    train_options.add_argument("--name", help="name of the run (default: the recipe's name)")
    train_options.add_argument("--stop-after", **stop)
    push(train_options)
    train_options.add_argument("--use", **use)
    unsafe(train_options)
    trust(train_options)
    access(train_options)
    train = add("train", "train a model with a recipe (default: the packaged recipe)", RECIPE)
    train.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="default: the packaged recipe")

    sweep_options = options["sweep"]
    sweep_options.add_argument("--recipe", dest="recipe_name", metavar="NAME", help=packaged)
    sweep_options.add_argument("--out", metavar="DIR", help="directory of the runs (default: sweeps/RECIPE)")
    sweep_options.add_argument("--use", **use)
    unsafe(sweep_options)
    trust(sweep_options)
    access(sweep_options)
    sweep = add("sweep", "train a recipe with each combination of some values; again to continue", SWEEP + RECIPE)
    sweep.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="default: the packaged recipe")

    resume = add("resume", "continue a run from its newest checkpoint")
    resume.add_argument("run", metavar="RUN")
    resume.add_argument(
        "--strict", action="store_true", help="fail if the newest checkpoint is damaged (default: use the previous one)"
    )
    resume.add_argument(
        "--changed", action="store_true", help="continue although recipe, tokenizer, template or logs were changed"
    )
    resume.add_argument("--iterations", type=count, metavar="N", help="extend the run to N iterations")
    resume.add_argument("--stop-after", **stop)
    push(resume)
    resume.add_argument("--use", **use)
    unsafe(resume)
    trust(resume)
    access(resume)

    evaluate_options = options["eval"]
    at(evaluate_options)
    evaluate_options.add_argument(
        "--samples", type=count, metavar="N", help="answers per problem (default: 4, or the preset's)"
    )
    evaluate_options.add_argument(
        "--problems", type=count, metavar="N", help="number of problems (default: the recipe's)"
    )
    evaluate_options.add_argument(
        "--recipe", metavar="RECIPE", help="task and sampling for a model without a run: a file, or a packaged name"
    )
    evaluate_options.add_argument(
        "--preset", metavar="NAME", help="the settings of a paper: aime24-dapo, r1-zero-suite"
    )
    evaluate_options.add_argument("--data", metavar="DIR", help="directory of the preset's problems (default: the hub)")
    evaluate_options.add_argument(
        "--out", metavar="FILE.json", help="output (default: evaluations/ of the run, or here)"
    )
    evaluate_options.add_argument("--use", **use)
    unsafe(evaluate_options)
    trust(evaluate_options)
    access(evaluate_options)
    evaluate = add("eval", "measure the held-out accuracy of a model or a run", RECIPE)
    evaluate.add_argument("model", metavar="MODEL_OR_RUN")

    sample_options = options["sample"]
    at(sample_options)
    sample_options.add_argument("-n", type=count, default=1, metavar="N", help="number of answers (default: 1, greedy)")
    sample_options.add_argument("--answer", metavar="TEXT", help="the gold answer, for an environment that needs it")
    sample_options.add_argument("--use", **use)
    unsafe(sample_options)
    trust(sample_options)
    sample = add("sample", "print a model's answers to a prompt, or conversations that start with it", RECIPE)
    sample.add_argument("model", metavar="MODEL_OR_RUN")
    sample.add_argument("prompt", metavar="PROMPT")

    chat_options = options["chat"]
    chat_options.add_argument("--use", **use)
    trust(chat_options)
    chat = add("chat", "talk to a model, line by line; Ctrl-D ends", RECIPE)
    chat.add_argument("model", metavar="MODEL_OR_RUN")

    report = add("report", "write the report of a run, or of several runs in one page")
    report.add_argument("run", nargs="+", metavar="RUN")
    report.add_argument("--out", metavar="FILE.html", help="output file (default: report.html in the first run)")

    watch = add("watch", "show the report of runs as a live page in a browser on this machine")
    watch.add_argument("run", nargs="+", metavar="RUN")
    watch.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    export = add("export", "write the model of a run, or of one of its checkpoints, to a directory")
    export.add_argument("run", metavar="RUN")
    export.add_argument("out", metavar="DIR", help="the new model directory; it must not exist")
    at(export)
    export.add_argument("--dtype", default="", choices=("float32", "bfloat16", "float64"), help="dtype of the weights")
    push(export)
    trust(export)

    merge = add("merge", "merge an adapter (LoRA) into its base model")
    merge.add_argument("model", metavar="ADAPTER_OR_RUN")
    merge.add_argument("out", metavar="DIR", help="the new model directory; it must not exist")
    trust(merge)

    compare = add("compare", "compare two evaluations on the same problems", COMPARE)
    compare.add_argument("a", metavar="A", help="an evaluated run, or a file that eval wrote")
    compare.add_argument("b", metavar="B")
    allow = "a field of the protocol that may differ, such as sampling.top_p"
    compare.add_argument("--allow", action="append", default=[], metavar="FIELD", help=allow)

    audit = add("audit", "measure the error rates of verifiers on labelled answers", AUDIT)
    audit.add_argument(
        "verifier", nargs="+", metavar="VERIFIER", help="as in --verifier; the errors of the first are listed"
    )
    audit.add_argument("--cases", metavar="FILE.jsonl", help="your cases (default: the verifier's packaged cases)")
    audit.add_argument("--list", type=count, default=10, metavar="N", help="listed errors of each kind (default: 10)")
    audit.add_argument("--use", **use)
    unsafe(audit)
    access(audit)

    field_help = add("help", "print the meaning, type, unit, default and an example of a recipe's field")
    field_help.add_argument("field", nargs="?", default="", metavar="FIELD", help="a dotted name (default: list all)")
    methods = add("methods", "list the published methods by family, with what each changes in its parent")
    methods.add_argument("--family", default="", metavar="FAMILY", help="only this family, such as ratio")
    methods.add_argument("--like", default="", metavar="NAME", help="only methods that change what NAME changes")
    completion = add("completion", "print a script that completes commands, options and fields in your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(commands=commands.choices)
    show = add("show", "print a method with its paper, constants, differences and proofs; or a recipe in full")
    show.add_argument("what", metavar="NAME|FILE")
    certify = add("certify", "run the tests that prove a method, and write its certificate as JSON and HTML")
    certify.add_argument("name", metavar="NAME|all")
    certify.add_argument("--out", default="certificates", metavar="DIR", help="directory (default: certificates)")
    diff = add("diff", "print the differences between two methods or two recipes")
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    recipe = add("recipe", "print a recipe of an earlier version with the present names: recipe upgrade FILE")
    recipe.add_argument("action", choices=["upgrade"], help="rename old keys and parts")
    recipe.add_argument("file", metavar="FILE")
    doctor = add("doctor", "check this machine, and print how to install what is missing")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    check_options = options["check"]
    check_options.add_argument("--recipe", dest="recipe_name", metavar="NAME", help=packaged)
    check_options.add_argument("--use", **use)
    unsafe(check_options)
    trust(check_options)
    access(check_options)
    check = add("check", "print all errors of a recipe, in seconds, without loading weights", RECIPE)
    check.add_argument("file", nargs="?", metavar="RECIPE.toml", help="default: the packaged recipe")
    return table, options


def parse(
    table: argparse.ArgumentParser, options: Mapping[str, argparse.ArgumentParser], words: Sequence[str]
) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """The parsed arguments of a command line, and its overrides of recipe fields.

    The option parser of a command takes the options. Of the other words, overrides are taken out and the rest is
    parsed by `table`. Words after `--` are no options and no overrides.
    """
    command = options.get(words[0]) if words else None
    if command is None:
        return table.parse_args(words), []
    end = words.index("--") if "--" in words else len(words)
    known, others = command.parse_known_args(words[:end])
    arguments, overrides = split(command, others)
    a = table.parse_args([*arguments, *words[end:]])
    vars(a).update(vars(known))
    return a, overrides


def split(command: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate positional arguments from overrides: `--dotted.field value` or `--dotted.field=value`."""
    arguments, overrides = [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, text = word.partition("=")
        if not word.startswith("--") or word == "--help":
            arguments.append(word)
        elif (value := text if equals else next(remaining, None)) is None or (not equals and value.startswith("--")):
            command.error(f"{word} needs a value")
        else:
            overrides.append((name.removeprefix("--"), value))
    return arguments, overrides


def seconds(text: str) -> float:
    """Seconds from a duration such as `90`, `90s`, `30m`, `2h`, `1h30m`.

    >>> seconds("1h30m")
    5400.0
    """
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", text)
    try:
        parts = [float(part) for part in match.groups(default="0")] if match and text else invalid_time(text)
    except ValueError:
        invalid_time(text)
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def iteration(text: str) -> int | str:
    """Parse an iteration: its number, or `best` for the best checkpoint."""
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of an iteration nor best")
    return text if text == "best" else int(text)


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def invalid_time(text: str) -> NoReturn:
    """Raise the error for a duration that cannot be parsed."""
    raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 90s, 30m, 2h or 1h30m")


if __name__ == "__main__":
    sys.exit(main())
