"""Starts bubblewrap as nobody where the host is root: `python sandbox_launch.py BWRAP PREFIX [argument of bwrap] ...`.

The kernel counts no processes of root, and root may read what others may not; so nothing in the sandbox should be it.
What nobody cannot reach, Python's own directory, is shown at `/tmp/python` in a mount namespace that ends with this.
"""

import ctypes
import os
import sys

NOBODY = 65534
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18


def main(bwrap: str, prefix: str, *arguments: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def must(failed: int) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    must(libc.unshare(NEW_MOUNTS))
    must(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None))
    must(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"mode=755"))
    os.mkdir("/tmp/python")
    must(libc.mount(os.fsencode(prefix), b"/tmp/python", None, BIND | RECURSIVE, None))
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execve(bwrap, [bwrap, *arguments], {})


if __name__ == "__main__":
    main(*sys.argv[1:])
