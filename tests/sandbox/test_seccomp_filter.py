"""The checked-in system-call filters, run on every call number by an interpreter of BPF, against a table of numbers."""

import importlib.util
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from groupwise.sandbox import bubblewrap_command

TABLE = {  # name: number on x86_64, on aarch64; 0 if it does not exist
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "socket": (41, 198), "connect": (42, 203),
    "bind": (49, 200), "listen": (50, 201), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "personality": (135, 92),
    "fanotify_init": (300, 262), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "modify_ldt": (154, 0),
    "inotify_init": (253, 0), "inotify_init1": (294, 26),
}  # fmt: skip
"""Transcribed from the kernel's tables, independently of libseccomp."""
IDLE = {
    "flock": (73, 32), "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83),
    "sync_file_range": (277, 84), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "sched_yield": (24, 124), "setpriority": (141, 140),
}  # fmt: skip
CLONE, CLONE3, FCNTL, PRCTL = (56, 220), (435, 435), (72, 25), (157, 167)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM, ENOSYS, IDLES = 0x7FFF0000, 0x50001, 0x50000 | 38, 0x50000
EVERY = range(1024)
"""More call numbers than any kernel has."""


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seccomp_tool", Path("tools/seccomp_filter.py").absolute())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(machine: str) -> list[tuple[int, int, int, int]]:
    program = Path(bubblewrap_command.__file__).with_name(f"seccomp_{machine}.bpf").read_bytes()
    return list(struct.iter_unpack("=HBBI", program))


def run(program: list[tuple[int, int, int, int]], data: bytes) -> int:
    """The result of a filter for `struct seccomp_data`: the instructions that libseccomp emits, and no others."""
    value = at = 0
    while True:
        code, true, false, operand = program[at]
        at += 1
        if code == 0x20:  # load a word
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:  # and
            value &= operand
        elif code == 0x05:  # jump
            at += operand
        elif code == 0x06:  # return
            return operand
        else:
            test = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: value & operand}[code]
            at += true if test else false


def call(machine: str, number: int, first: int = 0, second: int = 0) -> bytes:
    return struct.pack("=iIQ6Q", number, AUDIT[machine], 0, first, second, 0, 0, 0, 0)


def numbers(table: dict[str, tuple[int, int]], which: int) -> set[int]:
    return {both[which] for both in table.values() if both[which]}


@pytest.fixture(params=AUDIT)
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_call_number_has_its_result(machine: str) -> None:
    which, program = list(AUDIT).index(machine), load(machine)
    expected = dict.fromkeys(EVERY, ALLOW)
    expected |= dict.fromkeys(numbers(TABLE, which), EPERM) | dict.fromkeys(numbers(IDLE, which), IDLES)
    expected |= {CLONE3[which]: ENOSYS, CLONE[which]: EPERM}  # clone without CLONE_THREAD is a fork
    assert {n: run(program, call(machine, n)) for n in EVERY} == expected


def flags() -> Iterator[int]:
    """Values of an argument: small ones, powers of two and their neighbours, with and without high bits."""
    low = {*range(2048), *(1 << n for n in range(32)), *((1 << n) - 1 for n in range(33))}
    yield from low
    yield from (value | 1 << 32 for value in low)


def test_the_arguments_that_decide(machine: str) -> None:
    """The kernel ignores the upper half of fcntl's and prctl's `int`; an allowed call may not have one for fcntl."""
    which, program = list(AUDIT).index(machine), load(machine)
    for value in flags():
        thread = run(program, call(machine, CLONE[which], first=value))
        assert thread == (ALLOW if value & 0x10000 else EPERM), value
        assert run(program, call(machine, PRCTL[which], first=value)) == (EPERM if value & 0xFFFFFFFF == 4 else ALLOW)
        allowed = value in (0, 1, 2, 3, 4, 5, 6, 7, 1030)
        assert run(program, call(machine, FCNTL[which], second=value)) == (ALLOW if allowed else EPERM), value


def test_other_architectures_and_the_x32_calls_are_refused(machine: str) -> None:
    program = load(machine)
    other = struct.pack("=iIQ6Q", 1, 0x40000003, 0, *[0] * 6)
    assert run(program, other) == EPERM
    if machine == "x86_64":
        assert {run(program, call(machine, 0x40000000 | n)) for n in EVERY} == {EPERM}


def test_the_filters_have_the_names_of_the_tool() -> None:
    names = tool()
    assert set(names.REFUSED) == set(TABLE) and set(names.IDLE) == set(IDLE)


@pytest.mark.skipif(sys.platform != "linux", reason="libseccomp is a library of Linux")
def test_the_tool_makes_filters_with_the_same_results(machine: str) -> None:
    """Another version of libseccomp may order the instructions otherwise, so results are compared, not bytes."""
    try:
        program = list(struct.iter_unpack("=HBBI", tool().make_filter(machine)))
    except OSError as error:
        pytest.skip(str(error))
    for number in EVERY:
        assert run(program, call(machine, number)) == run(load(machine), call(machine, number)), number


def test_a_processor_without_a_filter_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_command.platform, "machine", lambda: "aarch64")
    assert len(bubblewrap_command.seccomp_filter()) == 8 * len(load("aarch64"))
    monkeypatch.setattr(bubblewrap_command.platform, "machine", lambda: "riscv64")
    assert bubblewrap_command.seccomp_filter() == b""
