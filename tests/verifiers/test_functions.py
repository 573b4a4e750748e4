"""Graders that raise, lie, hang, die or print: always a verdict, and never a hung run."""

import asyncio
import gc
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupwise.core import Usage, WorkerLost
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.verifiers import grade_function
from groupwise.verifiers.function_pool import FunctionWorker
from tests.processes import HASTE, PATIENCE, is_running, wait_until, wait_until_gone

GRADER = """
import os, subprocess, sys, time
from dataclasses import dataclass, field

OTHER = __import__("beside").VALUE
CALLS = 0

@dataclass
class Verdict:
    outcome: object
    score: object = None
    subscores: dict = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""

class Reading(Verdict):
    answer = "one half"
Reading.__name__ = "Verdict"

@dataclass
class Stepped(Verdict):
    step_scores: dict = field(default_factory=lambda: {"line": [(3, 0.5), (7, 1)]})
Stepped.__name__ = "Verdict"

class Item:
    def __init__(self, value): self.value = value
    def item(self): return self.value

def grade(prompt, answer, gold):
    global CALLS
    CALLS += 1
    if answer == "equal": return [prompt, answer, gold] == ["p", "equal", {"n": [1, 2.5, None, "é"]}]
    if answer == "noted": open(prompt, "w").close()
    if answer in ("hang", "noted"): time.sleep(600)
    if answer == "spin":
        while True: pass
    if answer == "pid": return Verdict(1, subscores={"pid": os.getpid(), "calls": CALLS})
    if answer == "child":
        child = subprocess.Popen(["sleep", "600"])
        return open(prompt, "w").write(str(child.pid)) > 0
    if answer.startswith("daemon"):  # a new session, and a parent that has ended
        if os.fork():
            while not os.path.exists(prompt): time.sleep(0.01)
            return os._exit(3) if answer == "daemon, exit" else True
        os.setsid()
        if os.fork(): os._exit(0)
        open(prompt + "~", "w").write(str(os.getpid()))
        os.rename(prompt + "~", prompt)
        time.sleep(600)
    if answer == "print":
        print("to stdout"); sys.stdout.flush(); os.write(1, b"more"); return sys.stdin.read() == ""
    if answer.startswith("sleep "): time.sleep(float(answer.split()[1])); return float(answer.split()[2])
    return eval(answer)

class Box:
    @staticmethod
    def grade(prompt, answer, gold): return True

def make():
    def inner(prompt, answer, gold): return True
    return inner

nameless = lambda prompt, answer, gold: True

async def later(prompt, answer, gold):
    import asyncio
    if answer == "hang": await asyncio.sleep(600)
    return eval(answer)
"""


@pytest.fixture
def user(tmp_path):
    """A user's file, imported as `--use` does."""
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    return use(tmp_path, GRADER)


def use(directory: Path, source: str, name: str = "my_file"):
    path = directory / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(directory))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(directory))
        del sys.modules[name]
        sys.modules.pop("beside", None)
    return module


@pytest.fixture
def new_verifier():
    """`grade_function` with a long deadline, and with its processes ended after the test."""
    pools = []

    def make(function, **options):
        pools.append(grade_function(function, **{"deadline": PATIENCE, **options}))
        return pools[-1]

    yield make
    for verifier in pools:
        verifier.close()


@contextmanager
def hasty(verifier: Verifier) -> Iterator[None]:
    """A context in which the verifier's calls have little time: for answers that never get a verdict."""
    pool = verifier.call.pool
    pool.deadline = HASTE
    yield
    pool.deadline = PATIENCE


def ask(verifier: Verifier, answer: str, prompt: str = "p", gold: object = 1) -> Verdict:
    return asyncio.run(call(verifier, answer, prompt, gold))


async def call(verifier: Verifier, answer: str, prompt: str = "p", gold: object = 1) -> Verdict:
    return await verifier(Prompt(prompt, (), prompt, {"answer": gold}), Sample(context=(), stream=(0,), text=answer))


RIGHT, WRONG, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.unverifiable
RULINGS = [
    ("True", RIGHT, None, ""),
    ("False", WRONG, None, ""),
    ("1", Outcome.scored, 1.0, ""),
    ("0", Outcome.scored, 0.0, ""),
    ("1.0", Outcome.scored, 1.0, ""),
    ("0.0", Outcome.scored, 0.0, ""),
    ("0.25", Outcome.scored, 0.25, ""),
    ("Item(True)", RIGHT, None, ""),
    ("Item(0.5)", Outcome.scored, 0.5, ""),
    ("Verdict(1)", RIGHT, None, ""),
    ("Verdict(0, 0.5)", WRONG, 0.5, ""),
    ("Verdict(2)", Outcome.malformed, None, ""),
    ("Verdict(3, cause='no such file')", UNKNOWN, None, "no such file"),
    ("float('nan')", UNKNOWN, None, "score nan"),
    ("float('inf')", UNKNOWN, None, "score inf"),
    ("-1", Outcome.scored, -1.0, ""),
    ("1.5", Outcome.scored, 1.5, ""),
    ("10**400", UNKNOWN, None, "score inf"),
    ("10**5000", UNKNOWN, None, "ValueError"),
    ("None", UNKNOWN, None, "it returned NoneType"),
    ("'yes'", UNKNOWN, None, "it returned str"),
    ("[1]", UNKNOWN, None, "it returned list"),
    ("{}", UNKNOWN, None, "it returned dict"),
    ("object()", UNKNOWN, None, "it returned object"),
    ("1j", UNKNOWN, None, "it returned complex"),
    ("1/0", UNKNOWN, None, "my_file.py:53 in grade: ZeroDivisionError: division by zero"),
    ("__import__('problems')", UNKNOWN, None, "No module named 'problems'"),  # ours is not on the user's path
    ("sys.exit(0)", UNKNOWN, None, "SystemExit"),
    ("(_ for _ in ()).throw(KeyboardInterrupt)", UNKNOWN, None, "KeyboardInterrupt"),
    ("(lambda f: f(f))(lambda f: f(f))", UNKNOWN, None, "RecursionError"),
    ("os._exit(3)", UNKNOWN, None, "exit code 3"),
    ("os.kill(os.getpid(), 11)", UNKNOWN, None, "exit code -11"),
    ("Verdict(7)", UNKNOWN, None, "invalid Verdict"),
    ("Verdict('correct')", UNKNOWN, None, "ValueError"),
    ("Verdict(1, float('nan'))", UNKNOWN, None, "score nan"),
    ("Verdict(1, 2)", RIGHT, 2.0, ""),
    ("Verdict(4)", UNKNOWN, None, "scored without a score"),
    ("Verdict(1, 'high')", UNKNOWN, None, "invalid Verdict"),
    ("Verdict(1, subscores={'a': float('nan')})", UNKNOWN, None, "subscore a, which is not finite"),
    ("Verdict(1, subscores={'a': 'b'})", UNKNOWN, None, "invalid Verdict"),
    ("Verdict(1, subscores={'a': 10**400})", UNKNOWN, None, "invalid Verdict"),
    ("Verdict(1, feedback='x' * 2**21)", UNKNOWN, None, "a reply of more than"),
    ("Verdict(1, subscores={'a': object()})", UNKNOWN, None, "TypeError"),
]


def test_results_of_a_function(user, new_verifier):
    """One verifier for the whole table: nothing that one answer does reaches the next."""
    verifier = new_verifier(user.grade, workers=1)
    assert isinstance(verifier, Verifier)
    for answer, outcome, score, cause in RULINGS:
        verdict = ask(verifier, answer)
        assert (verdict.outcome, verdict.score) == (outcome, score), (answer, verdict)
        assert cause in verdict.cause and bool(verdict.cause) is (outcome is UNKNOWN), (answer, verdict)


def test_results_of_an_async_function(user, new_verifier):
    verifier = grade_function(user.later, deadline=PATIENCE)
    assert isinstance(verifier, Verifier)
    assert ask(verifier, "True").outcome is RIGHT
    assert ask(verifier, "0.5").value == 0.5
    for answer in ("float('nan')", "None", "1/0", "'2'"):
        assert ask(verifier, answer).outcome is UNKNOWN
    verdict = ask(grade_function(user.later, deadline=0.2), "hang")
    assert (verdict.outcome, verdict.cause) == (UNKNOWN, "no verdict within 0.2 s")
    in_loop = grade_function(returns_verdict)
    assert ask(in_loop, "x").feedback == "well done"


def test_the_verdict_has_the_answer_that_a_function_read(user, new_verifier):
    verifier = new_verifier(user.grade, workers=1)
    assert ask(verifier, "Reading(1)").answer == "one half"
    assert ask(verifier, "Verdict(1)").answer is None and ask(verifier, "True").answer is None


def test_the_steps_of_a_functions_verdict_come_along(user, new_verifier):
    verifier = new_verifier(user.grade, workers=1)
    assert ask(verifier, "Stepped(1)").step_scores == {"line": ((3, 0.5), (7, 1.0))}
    assert "invalid Verdict" in ask(verifier, "Stepped(1, step_scores={'line': [('x', 1)]})").cause
    assert ask(verifier, "Verdict(1)").step_scores == {}


async def returns_verdict(prompt: str, answer: str, gold: object) -> Verdict:
    return Verdict(Outcome.correct, feedback="well done", subscores={"style": 0.5})


def test_prompt_answer_and_gold_are_passed_unchanged(user, new_verifier):
    assert ask(new_verifier(user.grade), "equal", gold={"n": [1, 2.5, None, "é"]}).outcome is RIGHT


@pytest.mark.parametrize("answer", ["hang", "spin"])
def test_a_hang_is_killed_and_the_worker_replaced(user, new_verifier, answer: str):
    verifier = new_verifier(user.grade, workers=1)
    first = ask(verifier, "pid").subscores
    assert ask(verifier, "pid").subscores == {"pid": first["pid"], "calls": first["calls"] + 1}
    with hasty(verifier):
        verdict = ask(verifier, answer)
    assert verdict.outcome is UNKNOWN and verdict.cause == "no verdict within 1 s"
    wait_until_gone([int(first["pid"])])
    assert ask(verifier, "pid").subscores["calls"] == 1
    assert ask(verifier, "True").outcome is RIGHT


def test_after_a_hang_all_processes_of_the_grader_are_killed(user, new_verifier, tmp_path):
    note, verifier = tmp_path / "pid", new_verifier(user.grade, workers=1)
    assert ask(verifier, "child", prompt=str(note)).outcome is RIGHT and is_running(int(note.read_text()))
    with hasty(verifier):
        assert ask(verifier, "hang").outcome is UNKNOWN
    wait_until_gone([int(note.read_text())])


@pytest.mark.parametrize("end", ["hang", "exit", "close"])
def test_a_process_in_a_new_session_ends_with_the_grader(user, new_verifier, tmp_path, end: str):
    note, verifier = tmp_path / "pid", new_verifier(user.grade, workers=1)
    outcome = ask(verifier, "daemon, exit" if end == "exit" else "daemon, return", prompt=str(note)).outcome
    assert outcome is (UNKNOWN if end == "exit" else RIGHT)
    pid = int(note.read_text())
    assert is_running(pid) or end == "exit"  # it may serve further calls
    if end == "hang":
        with hasty(verifier):
            assert ask(verifier, "hang").outcome is UNKNOWN
    if end == "close":
        verifier.close()
    wait_until_gone([pid])


def test_eight_hangs_in_a_row_lose_the_worker_and_a_verdict_resets_the_count(user, new_verifier):
    verifier = new_verifier(user.grade, workers=8)

    def hang(times: int) -> list[Verdict]:
        async def together() -> list[Verdict]:
            return await asyncio.gather(*(call(verifier, "hang") for _ in range(times)))

        with hasty(verifier):
            return asyncio.run(together())

    for _ in range(2):
        assert [v.outcome for v in hang(7)] == [UNKNOWN] * 7
        assert ask(verifier, "True").outcome is RIGHT
    assert [v.outcome for v in hang(7)] == [UNKNOWN] * 7
    with hasty(verifier), pytest.raises(WorkerLost, match="8 times in a row"):
        ask(verifier, "hang")
    with pytest.raises(WorkerLost, match="8 times in a row") as caught:
        ask(verifier, "True")
    assert caught.value.code == 7 and "my_file.py:grade" in caught.value.evidence


@pytest.mark.t(42)
def test_verdicts_are_in_the_order_of_the_calls(user, new_verifier, monkeypatch):
    """Whatever each answer costs, and when some raise, die or hang. Only the one that hangs has a short deadline."""
    request = FunctionWorker.request

    def requested(self: FunctionWorker, message: object, seconds: float) -> dict:
        return request(self, message, HASTE if '"hang"' in json.dumps(message) else seconds)

    monkeypatch.setattr(FunctionWorker, "request", requested)
    verifier = new_verifier(user.grade, workers=2)
    delays = [0.2, 0.0, 0.1, 0.05, 0.0, 0.15, 0.02, 0.0]
    answers = [f"sleep {delay} {i / 16}" for i, delay in enumerate(delays)]
    answers[2:2] = ["hang", "1/0", "os._exit(1)"]

    async def every():
        return await asyncio.gather(*(call(verifier, a) for a in answers))

    results = [v.score if v.outcome is not UNKNOWN else None for v in asyncio.run(every())]
    assert results == [0.0, 1 / 16, None, None, None, *(i / 16 for i in range(2, 8))]


def test_as_many_processes_as_workers_and_none_before_the_first_call(user, new_verifier):
    others = set(children())  # of other tests in this process
    verifier = new_verifier(user.grade, workers=2)
    assert not set(children()) - others

    async def every():
        return await asyncio.gather(*(call(verifier, "pid") for _ in range(12)))

    for _ in range(2):
        pids = {v.subscores["pid"] for v in asyncio.run(every())}
        assert 1 <= len(pids) <= 2 and len(set(children()) - others) <= 2
        ask(verifier, "os._exit(0)")
        ask(verifier, "os._exit(0)")
    verifier.close()
    wait_until_gone(set(children()) - others)


def children() -> list[int]:
    """Grader processes of this one that run."""
    process_ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            graders = b"verifiers/worker.py" in (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid() and graders and is_running(int(stat.parent.name)):
            process_ids.append(int(stat.parent.name))
    return process_ids


def test_prints_do_not_reach_our_output_and_input_is_empty(user, new_verifier, capfd):
    assert ask(new_verifier(user.grade), "print").outcome is RIGHT
    out, err = capfd.readouterr()
    assert out == "" and "to stdout" in err and "more" in err


def test_a_dropped_verifier_ends_its_processes(user):
    verifier = grade_function(user.grade, workers=1)
    pid = int(ask(verifier, "pid").subscores["pid"])
    del verifier
    gc.collect()
    wait_until_gone([pid])


def test_close_ends_a_running_call(user, new_verifier, tmp_path):
    verifier, note = new_verifier(user.grade, workers=1), tmp_path / "begun"

    async def closed():
        running = asyncio.ensure_future(call(verifier, "noted", prompt=str(note)))
        await asyncio.to_thread(wait_until, note.exists, "the call has not begun")
        verifier.close()
        return await running

    assert "gave no verdict" in asyncio.run(closed()).cause


def test_a_worker_ends_with_its_host_also_during_a_call(user, tmp_path):
    """The host is killed, so nothing of its own can clean up."""
    script, note = tmp_path / "host.py", tmp_path / "daemon"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import my_file\n"
        "from groupwise.data import Prompt, Sample\n"
        "from groupwise.verifiers import grade_function\n"
        "v = grade_function(my_file.grade, workers=1)\n"
        "ask = lambda a: asyncio.run(v(Prompt('p', (), 'p', {'answer': 1}), Sample(context=(), stream=(0,), text=a)))\n"
        "print(int(ask('pid').subscores['pid']), flush=True)\n"
        f"daemon = Prompt('p', (), {str(note)!r}, {{}})\n"
        "asyncio.run(v(daemon, Sample(context=(), stream=(0,), text='daemon, return')))\n"
        "print(flush=True)\n"
        "ask('spin')\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        host.stdout.readline()
        assert is_running(pid) and is_running(int(note.read_text()))
        host.kill()
    wait_until_gone([pid, int(note.read_text())])


def test_the_code_is_that_of_the_start_also_after_the_file_changes(user, new_verifier, tmp_path):
    verifier = new_verifier(user.grade, workers=1)
    (tmp_path / "my_file.py").write_text("def grade(prompt, answer, gold): return 'changed'")
    assert ask(verifier, "True").outcome is RIGHT
    ask(verifier, "os._exit(0)")
    assert ask(verifier, "True").outcome is RIGHT


def test_a_static_method_can_be_a_grader(user, new_verifier):
    assert ask(new_verifier(user.Box.grade), "x").outcome is RIGHT


def test_functions_that_no_process_can_load_are_refused(user):
    for function in (user.make(), user.nameless, len, print, user.Item):
        with pytest.raises(Usage) as caught:
            grade_function(function)
        assert "def grade(prompt, answer, gold)" in caught.value.fix


def test_a_file_that_does_not_load_is_an_error_with_its_cause(tmp_path, new_verifier):
    source = "import sys\nassert 'pytest' in sys.modules, 'only at home'\ndef grade(p, a, g): return True\n"
    verdict = ask(new_verifier(use(tmp_path, source).grade), "x")
    assert verdict.outcome is UNKNOWN
    assert "my_file.py does not load: my_file.py:2 in <module>: AssertionError: only at home" in verdict.cause


def test_a_file_that_kills_its_process_is_a_lost_worker(tmp_path, new_verifier):
    source = "import os, sys\nif 'pytest' not in sys.modules: os._exit(5)\ndef grade(p, a, g): return True\n"
    verifier = new_verifier(use(tmp_path, source).grade)
    for _ in range(2):
        with pytest.raises(WorkerLost, match="did not start") as caught:
            ask(verifier, "x")
    assert caught.value.evidence == "exit code 5"


def test_large_answers_pass(user, new_verifier):
    assert ask(new_verifier(user.grade), "len(answer) > 10**7" + " " * 10**7).outcome is RIGHT


def test_it_works_in_any_thread_and_any_loop(user, new_verifier):
    from threading import Thread

    verifier, results = new_verifier(user.grade), []
    threads = [Thread(target=lambda: results.append(ask(verifier, "True").outcome)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [RIGHT] * 4


def test_a_parameter_called_row_gets_the_columns_of_the_data_row(tmp_path, monkeypatch):
    """Of a plain function as of an async one; a function without it is called as before."""
    (tmp_path / "with_row.py").write_text(
        "def grade(prompt, answer, gold, row): return row == {'answer': 4, 'level': 2}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    prompt = Prompt("p", (), "p", {"answer": 4, "level": 2})

    async def grade(prompt, answer, gold, *, row):
        row["level"] = 3  # a copy: the next call gets 2 again
        return len(row) == 2

    plain = grade_function(__import__("with_row").grade, workers=1)
    try:
        for verifier in (plain, grade_function(grade)):
            for _ in range(2):
                assert asyncio.run(verifier(prompt, Sample(context=(), stream=(0,), text="4"))).outcome is RIGHT
        assert prompt.row == {"answer": 4, "level": 2}
    finally:
        plain.close()
