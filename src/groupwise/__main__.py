"""The command line. A command's modules are imported only when it runs, so that every `--help` is fast."""

import argparse
import errno
import gc
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from groupwise.commands.parsing import options_of, parse, parser
from groupwise.commands.user_code_files import check_function_names, with_named_files


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    code = code_of(list(sys.argv[1:] if argv is None else argv))
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # the terminal is gone; with text left in the buffer, Python would end with code 120
        sys.stderr = None  # type: ignore[assignment]
    return code


def code_of(words: list[str]) -> int:
    """Run one command, and return its exit code. An error is printed."""
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
            from groupwise.config.command_line_advice import spell_options

            spell_options(error, words)  # type: ignore[arg-type]
            print(f"error: {error}", file=sys.stderr)
            return code
        return bug(words)


def bug(words: list[str]) -> int:
    """Print the current unexpected exception (not a GroupwiseError), and how to report it as a bug."""
    from groupwise.core import visible

    request = "this is a bug in groupwise: please open an issue with the lines above and the command"
    print(visible(traceback.format_exc(), lines=True) + request, file=sys.stderr)
    print(visible(f"  groupwise {shlex.join(words)}"), file=sys.stderr)
    return 1


def run(words: list[str]) -> int:
    """Parse the arguments, run the command, and return the exit code."""
    words = with_named_files(words)
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
    if getattr(a, "agent_command", "") and a.command != "resume":
        overrides = [*overrides, ("agent.file", "")]  # the recipe says that the agent is a program, not which one
    if overrides:
        from groupwise.commands.unknown_options import check_options, named_fields

        overrides = named_fields(overrides)
        check_function_names(overrides)
        if a.command != "check":  # which prints all problems of a recipe together
            check_options(a.command, overrides, getattr(a, "recipe", None))
    name_runs(a)
    if a.command in ("report", "watch", "compare", "show", "diff", "doctor", "certify"):
        return inspect(a)
    if a.command in ("train", "sweep", "resume"):
        return train_model(a, overrides, shlex.join(["groupwise", *words]))
    return use_model(a, overrides)


def train_model(a: argparse.Namespace, overrides: list[tuple[str, str]], command: str) -> int:
    """Run a command that starts or continues runs. `command` is the whole command line, for run.json."""
    from groupwise.api.options import RunOptions
    from groupwise.commands import train
    from groupwise.config.user_code import Permissions

    allowed = options_of(Permissions, a)
    if a.command == "sweep":
        from groupwise.commands.sweep import sweep

        return sweep(a.recipe, overrides, allowed, recipe_name=a.recipe_name, out=a.out)
    options = options_of(RunOptions, a, permissions=allowed, command_line=command)
    if a.command == "resume":
        return train.resume(a.run, options, push=a.push)
    return train.train(a.recipe, overrides, options, recipe_name=a.recipe_name, push=a.push)


def use_model(a: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run a command that uses a model, a verifier or a recipe, and trains nothing."""
    from groupwise.config.user_code import Permissions

    allowed = options_of(Permissions, a)
    match a.command:
        case "eval":
            from groupwise.commands import eval as evaluate

            return evaluate.evaluate(a.model, overrides, allowed, at=a.at, samples=a.samples, problems=a.problems,
                                     recipe_path=a.recipe, preset=a.preset, preset_data=a.preset_data,
                                     out=a.out)  # fmt: skip
        case "sample":
            from groupwise.commands import eval as evaluate

            return evaluate.sample(a.model, a.prompt, overrides, allowed, at=a.at, n=a.n, answer=a.answer,
                                   images=a.images, out=a.out)  # fmt: skip
        case "serve":
            from groupwise.commands.serve_native import ServeOptions, serve
            from groupwise.commands.serve_vllm import serve_vllm
            from groupwise.commands.served_engine import served_engine
            from groupwise.engines import Vllm

            options = options_of(ServeOptions, a, engine=served_engine(overrides))
            if options.replicas > 1:
                from groupwise.commands.serve_replicas import serve_replicas

                return serve_replicas(a.model, options, overrides, a.engine_python)
            is_vllm = isinstance(options.engine, Vllm)
            return serve_vllm(a.model, options, a.engine_python) if is_vllm else serve(a.model, options)
        case "chat":
            from groupwise.commands.chat import chat

            return chat(a.model, overrides, allowed)
        case "check":
            from groupwise.commands.check import check

            return check(a.recipe, overrides, allowed, recipe_name=a.recipe_name)
        case "plan":
            from groupwise.commands.plan import plan

            return plan(a.recipe, overrides, allowed, recipe_name=a.recipe_name, machines=a.machines, rates=a.rates,
                        svg=a.svg, every_split=a.every_split, as_json=a.as_json)  # fmt: skip
        case "audit":
            from groupwise.commands.audit import audit

            return audit(a.verifier, allowed, cases_path=a.cases, listed=a.list, families=a.families)
        case "export":
            from groupwise.commands.export import export_model

            return export_model(a.run, a.out, allowed, at=a.at, dtype=a.dtype, push=a.push)
        case "whatif":
            from groupwise.commands.whatif import whatif

            return whatif(a.run, a.methods, allowed, iteration=a.iteration, group=a.group, as_json=a.as_json,
                          in_report=a.in_report)  # fmt: skip
        case "explain":
            from groupwise.commands.whatif import explain

            return explain(a.run, allowed, iteration=a.iteration, sample=a.sample, token=a.token, method=a.method,
                           as_json=a.as_json)  # fmt: skip
        case "merge":
            from groupwise.commands.merge import merge_adapter

            return merge_adapter(a.model, a.out, allowed)
    raise AssertionError(a.command)


def name_runs(a: argparse.Namespace) -> None:
    """Replace each run in the arguments without its time, such as `runs/first`, by the newest run of that name."""
    from groupwise.runs.find_run import newest_run, run_or_model

    only_runs = a.command in ("resume", "report", "watch", "compare", "whatif", "explain")
    may_be_runs = a.command in ("eval", "sample", "chat", "merge")
    for argument in ("run", "model", "what", "a", "b"):
        value = getattr(a, argument, None)
        names = [value] if isinstance(value, str) else value or []
        find = run_or_model if may_be_runs else newest_run
        runs = [find(name) if only_runs or may_be_runs or "/" in name else name for name in names]
        if runs:
            setattr(a, argument, runs[0] if isinstance(value, str) else runs)


def print_text(a: argparse.Namespace) -> int:
    """Run `methods`, `help` or `completion`. Only `methods --map` imports torch."""
    from groupwise.core import visible

    match a.command:
        case "methods" if a.map:
            from groupwise.commands.certify import write_map

            return write_map(a.map)
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


def inspect(a: argparse.Namespace) -> int:
    """Run a command on runs, recipes, methods or this machine. `report`, `watch` and `compare` import no torch."""
    if a.command == "report":
        from groupwise.report.report import report

        return report(a.run, a.out)
    if a.command == "watch":
        from groupwise.commands.watch import watch

        return watch(a.run, a.port)
    if a.command == "compare":
        from groupwise.commands.compare_evaluations import compare

        return compare(a.a, a.b, a.allow)
    if a.command == "certify":
        from groupwise.commands.certify import write_certificates

        return write_certificates(a.name, a.out, effect=a.effect)
    with uncollected():
        return print_view(a)


@contextmanager
def uncollected() -> Iterator[None]:
    """A context without garbage collection, for a short command: a collection would walk all objects of torch."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def print_view(a: argparse.Namespace) -> int:
    """Print a method, a recipe or a run, a difference of two of them, or what this machine lacks."""
    from groupwise.commands import show_and_diff as views
    from groupwise.core import visible

    match a.command:
        case "show":
            print(visible(views.show(a.what), lines=True))
        case "diff":
            print(visible(views.show_diff(a.a, a.b), lines=True))
        case "doctor":
            from groupwise.commands import doctor

            findings = doctor.examine(engine_python=a.engine_python)
            print(visible(doctor.as_json(findings) if a.as_json else doctor.as_text(findings), lines=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
