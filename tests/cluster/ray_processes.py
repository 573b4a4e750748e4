"""The processes that runs under Ray have started: those of this test process alone.

Other suites of a machine run the same programs. Ray's processes inherit the environment of the process that started the
cluster, and so do the engines and ranks on its nodes: a mark in it says whose they are.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

MARK = "GROUPWISE_TEST_RUN"
"""The variable that all processes of one test process have. A process that a test starts inherits it."""
OWN = os.environ.setdefault(MARK, uuid4().hex)
PROGRAMS = (
    "groupwise.engines.remote.tls_replica",
    "groupwise.engines.vllm.vllm_engine",
    "groupwise.training.rank_worker",
)


def processes(programs: Sequence[str] = PROGRAMS, mark: str = OWN) -> dict[int, int]:
    """The processes of these programs with this mark, and their parents: the actors."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if not (entry.name.isdecimal() and words[2:4] and words[3] in programs and words[2] == "-m"):
                continue
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    return found
