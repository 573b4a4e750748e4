"""Starts bubblewrap as the user `nobody` if the host user is root: `python launch_bubblewrap.py SOURCE ...

-- BWRAP_ARGUMENT ...`.

The kernel does not limit the number of root's processes, and root can read every file, so no process in the sandbox
runs as root. Sources that `nobody` cannot reach, such as Python's directory, are mounted as `/tmp/0`, `/tmp/1` ... in
a mount namespace that ends with this process. The first source is bubblewrap.
"""

import ctypes
import os
import stat
import sys

NOBODY = 65534
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18


def main(*words: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    separator = words.index("--")
    sources, arguments = words[:separator], words[separator + 1 :]

    def check(status: int, what: str) -> None:
        if status:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)

    check(libc.unshare(NEW_MOUNTS), "a new mount namespace")
    check(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None), "/")
    # Open the sources before the mount on /tmp hides those that are under it.
    descriptors = [os.open(source, os.O_PATH) for source in sources]
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"mode=755"), "/tmp")
    for index, descriptor in enumerate(descriptors):
        target = f"/tmp/{index}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        source = f"/proc/self/fd/{descriptor}".encode()
        check(libc.mount(source, target.encode(), None, BIND | RECURSIVE, None), sources[index])
        os.close(descriptor)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execve("/tmp/0", ["bwrap", *arguments], {})


if __name__ == "__main__":
    main(*sys.argv[1:])
