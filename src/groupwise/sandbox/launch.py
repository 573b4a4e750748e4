"""Starts bubblewrap as nobody where the host is root: `python launch.py SOURCE ... -- argument of bwrap ...`.

The kernel counts no processes of root, and root may read what others may not; so nothing in the sandbox should be it.
What nobody cannot reach, such as Python's own directory, is shown as `/tmp/0`, `/tmp/1` ... in a mount namespace that
ends with this. The first of the sources is bubblewrap.
"""

import ctypes
import os
import stat
import sys

NOBODY = 65534
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18


def main(*words: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    cut = words.index("--")
    sources, arguments = words[:cut], words[cut + 1 :]

    def must(failed: int, what: str) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)

    must(libc.unshare(NEW_MOUNTS), "a new mount namespace")
    must(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None), "/")
    opened = [os.open(source, os.O_PATH) for source in sources]  # before /tmp is covered: a source may lie under it
    must(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"mode=755"), "/tmp")
    for number, descriptor in enumerate(opened):
        place = f"/tmp/{number}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
        source = f"/proc/self/fd/{descriptor}".encode()
        must(libc.mount(source, place.encode(), None, BIND | RECURSIVE, None), sources[number])
        os.close(descriptor)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execve("/tmp/0", ["bwrap", *arguments], {})


if __name__ == "__main__":
    main(*sys.argv[1:])
