"""Each place of the package that starts a program, and where the words of its command come from.

Read from the source: a start that is not in `ALLOWED` fails here. No word of a command may come from a recipe, but for
numbers, and for paths that the program reads as data.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import groupwise

SOURCE = Path(groupwise.__file__).parent
OURS = "this interpreter, and a file of this package"
ALLOWED = {
    ("certificates/studies.py", "subprocess.run(command)"): f"the developer's command: {OURS}",
    ("certificates/proofs.py", "subprocess.run(command)"): "the developer's command: pytest in this interpreter",
    ("certificates/certificate.py", "subprocess.run(['git', '-C', str(root), *words])"): "git, literal words",
    (
        "sandbox/launch_bubblewrap.py",
        "os.execve('/tmp/0')",
    ): "bubblewrap, which sandbox/bubblewrap_command.py finds in PATH",
    ("sandbox/die_with_parent.py", "os.execv(sys.executable)"): "this interpreter, words of the process that starts it",
    ("sandbox/sandbox.py", "subprocess.Popen(command)"): f"bubblewrap, or unsandboxed with --unsafe-local-exec: {OURS}",
    ("sandbox/mounted_files.py", "subprocess.run(command)"): "the interpreter behind this one, literal words",
    ("sandbox/server.py", "os.fork()"): "no program: a copy of the sandbox's server",
    ("verifiers/worker.py", "os.fork()"): "no program: a copy of the worker",
    ("verifiers/function_pool.py", "subprocess.Popen(command)"): OURS,
    ("engines/remote/tls.py", "subprocess.run(command)"): "openssl, literal words",
    (
        "engines/vllm/vllm_python_environment.py",
        "subprocess.run(command)",
    ): "the interpreter of --engine-python, literal words",
    (
        "engines/vllm/vllm_tls_replica.py",
        "os.execvpe",
    ): "the interpreter of --engine-python, of the trainer's command line",
    (
        "engines/remote/replica.py",
        "subprocess.Popen(command(program, os.getpid()))",
    ): f"{OURS}, or that of --engine-python",
    ("commands/serve_vllm.py", "asyncio.create_subprocess_exec(*words)"): "the interpreter of --engine-python",
    (
        "rollout/agents/programs.py",
        "asyncio.create_subprocess_exec(*command)",
    ): "the words of --agent-command; the row and the key are in the environment",
    ("models/line_worker.py", "subprocess.Popen(command)"): OURS,
    ("cluster/child_process.py", "subprocess.Popen(command)"): f"{OURS}; settings as one word of JSON",
}
MODULES = {
    "subprocess": ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    "os": ("system", "popen", "fork", "forkpty", "startfile"),
    "asyncio": ("create_subprocess_exec", "create_subprocess_shell"),
    "pty": ("spawn", "fork"),
}
FAMILIES = ("exec", "spawn", "posix_spawn")
"""The begins of further names of `os`."""
LIBRARIES = ("multiprocessing", "concurrent.futures.process", "pexpect", "sh", "plumbum", "webbrowser")


def starts(node: ast.AST) -> bool:
    """Whether a name in the source is a function that starts a program."""
    if not isinstance(node, ast.Attribute):
        return False
    module = node.value.id if isinstance(node.value, ast.Name) else ""
    known = node.attr in MODULES.get(module, ()) or (module == "os" and node.attr.startswith(FAMILIES))
    return known or node.attr in ("subprocess_exec", "subprocess_shell")


def findings(tree: ast.AST) -> Iterator[str]:
    """Each start of a program: a call with its first argument, or a function that is passed on."""
    types = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if starts(node) and (call := called.get(id(node))):
                yield f"{ast.unparse(node)}({', '.join(map(ast.unparse, call.args[:1]))})"
            case ast.Attribute() if starts(node) and id(node) not in types:
                yield ast.unparse(node)
            case ast.ImportFrom(module=str(module), names=names) if module in MODULES:
                known = [a.name for a in names if starts(ast.parse(f"{module}.{a.name}", mode="eval").body)]
                yield from (f"from {module} import {name}" for name in known)
            case ast.ImportFrom(module=str(module)) if module in LIBRARIES:
                yield ast.unparse(node)
            case ast.Import(names=names) if any(alias.name in LIBRARIES for alias in names):
                yield ast.unparse(node)


def test_each_start_of_a_program_has_a_source_of_its_words() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    found = {(str(p.relative_to(SOURCE)), text) for p in files for text in findings(ast.parse(p.read_text()))}
    assert not found - ALLOWED.keys(), "each of these starts a program, and needs a reason in ALLOWED"
    assert not ALLOWED.keys() - found, "these are gone: take them out of ALLOWED"


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run([self.python])", "subprocess.Popen(words)", "subprocess.check_output(words)",
        "os.execvp(python, words)", "os.posix_spawn(python, words, {})", "os.spawnv(0, python, words)",
        "os.system(text)", "os.popen(text)", "asyncio.create_subprocess_shell(text)",
        "loop.subprocess_exec(protocol, python)", "start = os.execv", "from subprocess import Popen",
        "from os import execv", "from asyncio import create_subprocess_exec", "import multiprocessing",
        "from multiprocessing import Process", "pty.spawn(words)",
    ],
)  # fmt: skip
def test_each_way_is_seen(line: str) -> None:
    assert list(findings(ast.parse(line)))


def test_names_that_start_nothing_are_left_out() -> None:
    assert not list(findings(ast.parse("x: subprocess.Popen[bytes]\nsubprocess.PIPE\nfrom subprocess import PIPE")))
