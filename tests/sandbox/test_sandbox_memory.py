"""What an answer finds in its own memory: nothing of any other execution."""

import asyncio
import re
from pathlib import Path

import pytest

from groupwise.data import Outcome, Prompt, Sample
from groupwise.environments import python_tools
from groupwise.sandbox import ExecutionInput, Sandbox
from groupwise.verifiers import CodeVerifier
from tests.sandbox.boxes import children, needed, servers

SCAN = r"""
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
file = os.open("/tmp/page", os.O_RDWR | os.O_CREAT)
def page(address):
    os.lseek(file, 0, 0)
    if libc.write(file, address, 4096) != 4096:
        return b""
    os.lseek(file, 0, 0)
    return os.read(file, 4096)
def regions():
    address, pages = libc.sbrk(0) & ~4095, []
    while data := page(address := address - 4096):
        pages.append(data)
    yield b"".join(pages[::-1])
    for place in {id(page) >> 20, id(regions) >> 20, id(object()) >> 20}:
        for start in range((place - 48) << 20, (place + 48) << 20, 1 << 20):
            yield b"".join(page(start + i * 4096) for i in range(256))
def planted(*texts):
    words = {word.decode() for data in regions() for word in re.findall(rb"planted:[a-z]+", data)}
    return sorted(words)
"""
"""Reads the heap, and the memory around Python's objects; a write from an address that is not mapped only fails."""
FILL = "# a comment of some length, so that the program takes as much memory as one that solves something\n" * 8
OTHERS = [
    ExecutionInput(f"# planted:reference\n{FILL}def f(a): return 'planted' + ':value'", "f", (1,)),
    ExecutionInput(f"{FILL}def f(a): return a", "f", ("planted:argument",)),
    ExecutionInput(f"# planted:sibling\n{FILL}def f(): raise ValueError('planted' + ':error')", "f"),
    ExecutionInput(f"# planted:program\n{FILL}print('planted' + ':output')", stdin="planted:input"),
    ExecutionInput(f"# planted:late\n{FILL}while True: print('planted' + ':flood')", stdin="planted:line\n" * 99),
]
"""Executions of others, each with a word in its code, its data or what it gives."""


def test_an_answer_has_nothing_of_another_execution_in_its_memory(sandbox):
    sandbox.run(OTHERS * 2)
    (execution,) = sandbox.run([ExecutionInput(SCAN, "planted", ("planted:zebra",))])
    words = execution.return_value
    # A freed copy of its own word may be cut; no word of another execution begins with its letter.
    assert "planted:zebra" in words and all("planted:zebra".startswith(word) for word in words), execution


def test_a_conversation_has_nothing_of_another_one(sandbox):
    tools = python_tools(sandbox)
    turns = (f"```python\n# planted:turn\n{FILL}print('planted' + ':told')\n```\n" for _ in range(4))
    for turn in turns:
        asyncio.run(tools.step(turn))
    words = asyncio.run(tools.step(f"```python\n{SCAN}\nown = 'planted' + ':own'\nprint(*planted())\n```\n"))
    assert "planted:own\n```" in words, words


def test_the_processes_of_a_box_hold_nothing_of_what_they_ran(sandbox):
    """Seen from outside, all of their memory: what a future execution could inherit."""
    sandbox.run(OTHERS)
    sizes, words = [], set()
    for pid in (pid for box in servers(sandbox) for pid in [box, *children(box)]):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                try:
                    with open(f"/proc/{pid}/mem", "rb") as memory:
                        memory.seek(start)
                        data = memory.read(end - start)
                except PermissionError:
                    pytest.skip("this user may not read the memory of its own processes")
                sizes.append(len(data))
                words |= set(re.findall(rb"planted:[a-z]+", data))
    assert sum(sizes) > 1 << 20 and words == set()


# Code that knows what is right runs elsewhere

GOLD = {
    "function": "f",
    "cases": [{"args": [3], "expected": 11}, {"args": [4], "expected": 14}],
    "reference": "# planted:reference\ndef f(x): return 3 * x + 2",
    "generator": "# planted:generator\nimport random\ndef generate(seed): return [random.Random(seed).randint(9, 99)]",
}


def test_a_reference_and_a_generator_share_no_box_with_an_answer(monkeypatch):
    needed()
    verifier = CodeVerifier(Sandbox(boxes=1))
    programs: list[ExecutionInput] = []
    execution = verifier.sandbox.execute

    async def recorded(program: ExecutionInput):
        programs.append(program)
        return await execution(program)

    monkeypatch.setattr(verifier.sandbox, "execute", recorded)
    try:
        verifier.gate([Prompt("p", (), "write f", {"answer": GOLD})])
        sample = Sample(context=(), stream=(0,), text="```python\ndef f(x): return x * 3 + 2\n```")
        verdict = asyncio.run(verifier(Prompt("p", (), "write f", {"answer": GOLD}), sample))
        assert verdict.outcome is Outcome.correct
        assert len(programs) > 5 and not any("planted" in program.code for program in programs)
        ours, theirs = servers(verifier.references), servers(verifier.sandbox)
        assert ours and theirs and not set(ours) & set(theirs)
    finally:
        verifier.sandbox.close()
    assert not servers(verifier.references), "they are closed with the sandbox that they belong to"
