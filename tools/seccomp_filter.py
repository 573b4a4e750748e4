"""Makes the sandbox's system-call filters with libseccomp: `python tools/seccomp_filter.py`.

Writes src/groupwise/sandbox/seccomp_x86_64.bpf and seccomp_aarch64.bpf, which are checked in, so a user's machine needs
no libseccomp. Each is an array of `struct sock_filter`. tests/sandbox/test_seccomp_filter.py runs both on every call
number. libseccomp 2.5 or newer: apt-get install libseccomp2.
"""

import ctypes
import tempfile
from pathlib import Path

SANDBOX = Path(__file__).parents[1] / "src" / "groupwise" / "sandbox"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of each processor."""

REFUSED = (
    "fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp",
    "pidfd_getfd", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
    "socket", "connect", "bind", "listen", "shmget", "shmat", "shmctl", "semget", "msgget", "mq_open",
    "mq_unlink", "add_key", "request_key", "keyctl", "bpf", "userfaultfd", "perf_event_open", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "init_module", "finit_module",
    "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "syslog", "acct", "quotactl",
    "personality", "fanotify_init", "settimeofday", "clock_settime", "adjtimex", "sethostname", "setdomainname",
    "modify_ldt", "inotify_init", "inotify_init1",
)  # fmt: skip
"""Calls that fail with EPERM."""
IDLE = (
    "flock", "sync", "syncfs", "fsync", "fdatasync", "sync_file_range", "sched_setscheduler", "sched_setparam",
    "sched_setattr", "sched_setaffinity", "sched_yield", "setpriority",
)  # fmt: skip
"""Calls that succeed and do nothing. An answer's own files are in memory, and all others belong to the host: an answer
must neither lock them nor sync the host's disks. It also must not give up its share of the processors: time in which
it waits for one is not counted as asleep."""
THREAD = 0x10000
"""CLONE_THREAD: clone without it is a fork, which is refused."""
DUMPABLE = 4
"""PR_SET_DUMPABLE: prctl with it is refused."""

ALLOW, ERRNO = 0x7FFF0000, 0x50000
EPERM, ENOSYS = 1, 38
BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
EQUAL, AT_LEAST, MASKED_EQUAL = 4, 5, 7
WORD = 0xFFFFFFFF
"""Mask of an `int` argument: the kernel ignores the upper half of the register."""

Comparison = tuple[int, int, int, int]
"""Index of the argument, operator, and its one or two operands (mask, then value)."""


def fcntl_commands() -> list[Comparison]:
    """The refused commands of fcntl: all except 0 to 7 and 1030.

    Allowed: duplicate, flags, and record locks, which sqlite3 needs (shared ones on read-only files). Refused: leases,
    notifications of other processes' reads, and signals. libseccomp compares an argument once per rule, so the ranges
    are aligned powers of two.
    """
    ranges = [(1 << n, 1 << n) for n in range(3, 10)] + [(1024, 4), (1028, 2), (1031, 1)]
    return [(1, MASKED_EQUAL, WORD & ~(size - 1), start) for start, size in ranges] + [(1, AT_LEAST, 1032, 0)]


class Argument(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def make_filter(architecture: str) -> bytes:
    """The filter program for a processor. OSError if libseccomp is missing or refuses a rule."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p

    def check(status: int, what: str) -> None:
        if status < 0:
            raise OSError(-status, f"libseccomp: {what}")

    context = ctypes.c_void_p(seccomp.seccomp_init(ALLOW))
    token, native = ctypes.c_uint32(ARCHITECTURES[architecture]), seccomp.seccomp_arch_native()
    if native != ctypes.c_int32(token.value).value:
        check(seccomp.seccomp_arch_add(context, token), "add architecture")
        check(seccomp.seccomp_arch_remove(context, ctypes.c_uint32(native)), "remove architecture")
    check(seccomp.seccomp_attr_set(context, BAD_ARCHITECTURE, ERRNO | EPERM), "set attribute")

    def rule(name: str, errno: int, *comparisons: Comparison) -> None:
        if seccomp.seccomp_syscall_resolve_name_arch(token, name.encode()) < 0:
            return  # this processor does not have the call
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        arguments = (Argument * len(comparisons))(*(Argument(*c) for c in comparisons))
        action = ctypes.c_uint32(ERRNO | errno)
        check(seccomp.seccomp_rule_add_array(context, action, number, len(comparisons), arguments), name)

    for name in REFUSED:
        rule(name, EPERM)
    for name in IDLE:
        rule(name, 0)
    rule("clone3", ENOSYS)  # glibc then uses clone, whose flags the filter can read
    rule("clone", EPERM, (0, MASKED_EQUAL, THREAD, 0))
    for comparison in fcntl_commands():
        rule("fcntl", EPERM, comparison)
    rule("prctl", EPERM, (0, MASKED_EQUAL, WORD, DUMPABLE))
    with tempfile.TemporaryFile() as file:
        check(seccomp.seccomp_export_bpf(context, file.fileno()), "export")
        file.seek(0)
        program = file.read()
    seccomp.seccomp_release(context)
    return program


if __name__ == "__main__":
    for architecture in ARCHITECTURES:
        path = SANDBOX / f"seccomp_{architecture}.bpf"
        path.write_bytes(make_filter(architecture))
        print(path.name, path.stat().st_size // 8, "instructions")
