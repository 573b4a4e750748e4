"""The command table. No room is imported before a command runs, so that every `--help` comes at once."""

import argparse
import errno
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

RECIPE = """\
what a recipe says, and `--dotted.field value` changes:
  (top)             model task also held_out template verifier environment method prompts iterations seed
                    max_unverifiable sinks
  lora              rank alpha targets
  warm_start        demonstrations columns steps per_step optimizer save_every
  warm_start.columns prompt answer
  warm_start.optimizer lr betas eps weight_decay clip warmup decay
  columns           prompt answer
  method            base group_size curriculum strategy filter refill unverifiable shaping advantage credit mask
                    objective minibatches shuffle epochs proximal routing models memory schedules
  method.objective  surrogate weights penalties aggregate
  method.routing    replay balance
  sampling          temperature max_tokens top_p top_k min_p stop
  engine            rows cache_tokens max_gap
  optimizer         lr betas eps weight_decay clip warmup decay
  machine           device dtype threads microbatch_tokens recompute compile deadline verdict_deadline
  evaluate          every problems samples strategy
  save              every keep

  groupwise train recipe.toml --method.objective.surrogate.high 0.35 --iterations 50
  groupwise train --task problems.jsonl --verifier last_number
  groupwise train --model DIR --task gsm8k:DIR_OF_GSM8K --template chat
"""

COMPARE = """\
two numbers are compared only if they were taken in the same way: all of the protocol but the model, how many answers,
the seed and the engine has to be equal

  groupwise eval runs/A --samples 8
  groupwise eval runs/B --samples 8
  groupwise compare runs/A runs/B
"""

AUDIT = """\
  groupwise audit math
  groupwise audit my_file:grade math --use my_file.py --cases cases.jsonl
with rows such as {"answer": "so \\\\boxed{4}", "gold": "4", "right": true}
"""

CODES = """\
exit codes: 0 done, 1 a bug of ours, 2 usage, 3 data, 4 environment, 5 training diverged, 6 storage, 7 worker, 8 lock,
130 interrupted, 143 terminated
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a refusal can still be told
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = None  # type: ignore[assignment]
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            return bug(words)
        sys.stdout = None  # type: ignore[assignment]
        print("error: the output could not be written: no space left where it goes", file=sys.stderr)
        return 6
    except Exception as error:
        code = getattr(error, "code", None)
        if isinstance(code, int) and hasattr(error, "fix"):  # GroupwiseError, known without importing its room
            print(f"error: {error}", file=sys.stderr)
            return code
        return bug(words)


def bug(words: list[str]) -> int:
    """Print the exception that is being handled, which no error class names, and how to report it."""
    from groupwise.data import visible

    request = "this is a bug of groupwise: please open an issue with the lines above and the command"
    print(visible(traceback.format_exc(), lines=True) + request, file=sys.stderr)
    print(visible(f"  groupwise {shlex.join(words)}"), file=sys.stderr)
    return 1


def run(words: list[str]) -> int:
    """Dispatch to what carries a run (`train.commands`), asks a model (`train.ask`) or only looks."""
    table, commands = parser()
    known = commands.get(words[0]) if words else None
    words, overrides = split(known, words) if known else (words, [])
    a = table.parse_args(words)
    if a.version:
        from importlib.metadata import version

        print(f"groupwise {version('groupwise')}")
        return 0
    if a.command is None:
        table.print_help()
        return 0
    if a.command in ("report", "compare", "methods", "show", "diff", "check", "doctor"):
        return look(a, overrides)
    from groupwise.commands import train as do

    match a.command:
        case "train":
            told = shlex.join(["groupwise", *words, *(w for path, value in overrides for w in (f"--{path}", value))])
            return do.train(a.recipe, overrides, a.use, out=a.out, name=a.name, stop_after=a.stop_after, command=told,
                            unsafe_local_exec=a.unsafe_local_exec,
                            trust_remote_code=a.trust_remote_code, keys=a.key, judges=a.judge)  # fmt: skip
        case "resume":
            return do.resume(a.run, a.use, strict=a.strict, changed=a.changed, stop_after=a.stop_after,
                             unsafe_local_exec=a.unsafe_local_exec,
                             trust_remote_code=a.trust_remote_code, keys=a.key, judges=a.judge)  # fmt: skip
        case "merge":
            from groupwise.commands.merge import merged

            return merged(a.model, a.out, trust_remote_code=a.trust_remote_code)
        case "audit":
            from groupwise.commands.audit import audit

            return audit(a.verifier, a.use, cases_path=a.cases, listed=a.list, unsafe_local_exec=a.unsafe_local_exec,
                         keys=a.key, judges=a.judge)  # fmt: skip
    from groupwise.commands import evaluate as ask

    match a.command:
        case "eval":
            return ask.evaluate(a.model, overrides, a.use, samples=a.samples, problems=a.problems, recipe_path=a.recipe,
                                preset=a.preset, data=a.data, out=a.out,
                                unsafe_local_exec=a.unsafe_local_exec,
                                trust_remote_code=a.trust_remote_code, keys=a.key, judges=a.judge)  # fmt: skip
        case "sample":
            return ask.sample(a.model, a.prompt, overrides, a.use, n=a.n, answer=a.answer,
                              unsafe_local_exec=a.unsafe_local_exec,
                              trust_remote_code=a.trust_remote_code)  # fmt: skip
    raise AssertionError(a.command)


def look(a: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """The commands that only look: no weights, no engine. Those that only read files come without torch."""
    if a.command == "report":
        from groupwise.report.report import report

        return report(a.run, a.out)
    if a.command == "compare":
        from groupwise.commands.compare import compare

        return compare(a.a, a.b, a.allow)
    from groupwise.commands import show as views
    from groupwise.data import visible

    match a.command:
        case "methods":
            print(visible(views.list_methods(), lines=True))
        case "show":
            print(visible(views.show(a.what), lines=True))
        case "diff":
            print(visible(views.show_diff(a.a, a.b), lines=True))
        case "doctor":
            from groupwise.commands import doctor

            findings = doctor.examine()
            print(visible(doctor.as_json(findings) if a.json else doctor.as_text(findings), lines=True))
        case "check":
            from pathlib import Path

            from groupwise.commands.check import check
            from groupwise.config.user_code import load_use

            loaded = load_use(a.use, unsafe_local_exec=a.unsafe_local_exec, trust_remote_code=a.trust_remote_code,
                              keys=a.key, judges=a.judge)  # fmt: skip
            problems = check(Path(a.file), overrides, loaded, lambda line: print(visible(line)))
            print(visible(views.show_check(a.file, problems), lines=True))
            return problems[0].code if problems else 0
    return 0


def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """All commands, and those that take `--dotted.field value`."""
    table = argparse.ArgumentParser(
        prog="groupwise",
        description="Reinforcement-learning post-training of language models, in which every method is a value.",
        epilog=CODES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("--version", action="store_true", help="print the version and exit")
    commands = table.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, help: str, epilog: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
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
        "help": "code that the recipe names; it will be run",
    }

    def unsafe(known: argparse.ArgumentParser) -> None:
        known.add_argument(
            "--unsafe-local-exec",
            action="store_true",
            help="run what the model writes (verifier code) without a sandbox, with your own rights",
        )

    def trust(known: argparse.ArgumentParser) -> None:
        known.add_argument(
            "--trust-remote-code",
            action="store_true",
            help="execute Python files that the model's directory brings along, with your own rights",
        )

    def access(known: argparse.ArgumentParser) -> None:
        key = "the environment variable whose content a judge of the recipe may be sent"
        known.add_argument("--key", action="append", default=[], metavar="NAME", help=key)
        judge = "another machine that a judge of the recipe may send problems and answers to"
        known.add_argument("--judge", action="append", default=[], metavar="HOST", help=judge)

    stop = {"type": seconds, "metavar": "2h", "help": "save and end after so long: 90s, 30m, 1h30m"}

    train = add("train", "train a model: the packaged recipe, or one's own", RECIPE)
    train.add_argument("recipe", nargs="?", metavar="RECIPE.toml")
    train.add_argument("--out", default="runs", metavar="DIR", help="where run directories go (default: runs)")
    train.add_argument("--name", help="what the run is called (default: the recipe's name)")
    train.add_argument("--stop-after", **stop)
    train.add_argument("--use", **use)
    unsafe(train)
    trust(train)
    access(train)

    resume = add("resume", "go on with a run from its newest checkpoint")
    resume.add_argument("run", metavar="RUN")
    resume.add_argument(
        "--strict", action="store_true", help="refuse to fall back when the newest checkpoint is damaged"
    )
    resume.add_argument(
        "--changed", action="store_true", help="go on although recipe, tokenizer, template or logs were changed"
    )
    resume.add_argument("--stop-after", **stop)
    resume.add_argument("--use", **use)
    unsafe(resume)
    trust(resume)
    access(resume)

    evaluate = add("eval", "held-out accuracy of a model or a run", RECIPE)
    evaluate.add_argument("model", metavar="MODEL_OR_RUN")
    evaluate.add_argument("--samples", type=count, metavar="N", help="answers a problem (default: 4, or the preset's)")
    evaluate.add_argument("--problems", type=count, metavar="N", help="how many problems (default: the recipe's)")
    evaluate.add_argument("--recipe", metavar="RECIPE.toml", help="task and sampling of a model that is no run")
    evaluate.add_argument("--preset", metavar="NAME", help="as a paper did it: aime24-dapo, r1-zero-suite")
    evaluate.add_argument("--data", metavar="DIR", help="where a preset's problems are (default: the hub)")
    evaluate.add_argument("--out", metavar="FILE.json", help="where to (default: evaluations/ in the run, or here)")
    evaluate.add_argument("--use", **use)
    unsafe(evaluate)
    trust(evaluate)
    access(evaluate)

    sample = add("sample", "a model's answers to a prompt, or conversations that begin with it", RECIPE)
    sample.add_argument("model", metavar="MODEL_OR_RUN")
    sample.add_argument("prompt", metavar="PROMPT")
    sample.add_argument("-n", type=count, default=1, metavar="N", help="how many (default: 1)")
    sample.add_argument("--answer", metavar="TEXT", help="the gold answer, for an environment that asks for it")
    sample.add_argument("--use", **use)
    unsafe(sample)
    trust(sample)

    report = add("report", "write the report of a run, or of several laid over each other")
    report.add_argument("run", nargs="+", metavar="RUN")
    report.add_argument("--out", metavar="FILE.html", help="where to (default: report.html in the first run)")

    merge = add("merge", "write an adapter (LoRA) and its base as one plain model")
    merge.add_argument("model", metavar="ADAPTER_OR_RUN")
    merge.add_argument("out", metavar="DIR", help="where to: a directory that is not there yet")
    trust(merge)

    compare = add("compare", "how much better B does than A on the same problems", COMPARE)
    compare.add_argument("a", metavar="A", help="a run that was evaluated, or a file that eval wrote")
    compare.add_argument("b", metavar="B")
    allow = "a field of the protocol that may differ, such as sampling.top_p"
    compare.add_argument("--allow", action="append", default=[], metavar="FIELD", help=allow)

    audit = add("audit", "how often verifiers err, on answers that a reader has decided", AUDIT)
    audit.add_argument(
        "verifier", nargs="+", metavar="VERIFIER", help="as in --verifier; the errors of the first are listed"
    )
    audit.add_argument("--cases", metavar="FILE.jsonl", help="one's own cases (default: the verifier's packaged table)")
    audit.add_argument(
        "--list", type=count, default=10, metavar="N", help="errors of a kind that are told (default: 10)"
    )
    audit.add_argument("--use", **use)
    unsafe(audit)
    access(audit)

    add("methods", "the published methods, one a line")
    show = add("show", "a method with its paper, constants, differences and proofs; or a recipe in full")
    show.add_argument("what", metavar="NAME|FILE")
    diff = add("diff", "what distinguishes two methods or two recipes")
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    doctor = add("doctor", "what this machine can do, and how to get what it lacks")
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    check = add("check", "every error of a recipe, in seconds, without loading weights", RECIPE)
    check.add_argument("file", metavar="FILE")
    check.add_argument("--use", **use)
    unsafe(check)
    trust(check)
    access(check)
    return table, {"train": train, "eval": evaluate, "sample": sample, "check": check}


def split(known: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """A command's own words, and the overrides among them: `--dotted.field value` or `--dotted.field=value`."""
    own, overrides = [], []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            own += [word, *rest]
        elif not word.startswith("--"):
            own.append(word)
        elif name in known._option_string_actions:
            own.append(word)
            takes = known._option_string_actions[name].nargs != 0
            if takes and not equals and (following := next(rest, None)) is not None:
                own.append(following)
        elif (given := value if equals else next(rest, None)) is None:
            known.error(f"{word} needs a value")
        else:
            overrides.append((name.removeprefix("--"), given))
    return own, overrides


def seconds(text: str) -> float:
    """`90`, `90s`, `30m`, `2h`, `1h30m` as seconds.

    >>> seconds("1h30m")
    5400.0
    """
    found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", text)
    try:
        parts = [float(part) for part in found.groups(default="0")] if found and text else refuse(text)
    except ValueError:
        refuse(text)
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: say a whole number from 1")
    return int(text)


def refuse(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"{text!r} is no time: say it as 90s, 30m, 2h or 1h30m")


if __name__ == "__main__":
    sys.exit(main())
