"""A filter on system calls: what it takes to turn bytes in open files into other bytes in open files, and no more.

The filter is a small BPF program (``seccomp(2)``). Everything that is not listed fails with EPERM: sockets, opening
files, starting processes, signals to others, tracing. Memory can be mapped, but never as code.
"""

import ctypes
import platform
import struct
import sys

_X86, _ARM = 0xC000003E, 0xC00000B7
_ALLOWED = {  # name: number on x86-64, number on aarch64
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23), "nanosleep": (35, 101), "getpid": (39, 172),
    "exit": (60, 93), "uname": (63, 160), "ftruncate": (77, 46), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "sysinfo": (99, 179), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "restart_syscall": (219, 128), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "newfstatat": (262, 79), "getrandom": (318, 278),
    "membarrier": (324, 283), "rseq": (334, 293),
}  # fmt: skip
_MAPPED = {"mmap": (9, 222), "mprotect": (10, 226)}
_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_NUMBER, _ARCH, _THIRD = 0, 4, 32
"""Where in ``struct seccomp_data`` the call's number, the machine and the third argument stand."""
_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_EXECUTABLE = 4


def program(machine: str) -> bytes | None:
    """The filter's instructions for a machine as ``platform.machine()`` names it; None where it is not known."""
    column = {"x86_64": 0, "aarch64": 1}.get(machine)
    if column is None:
        return None
    steps = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, (_X86, _ARM)[column]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for numbers in _MAPPED.values():
        steps += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _THIRD), (_ANY, 0, 1, _EXECUTABLE)]
        steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    for numbers in _ALLOWED.values():
        steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install() -> str | None:
    """Put the filter on this process, for good; the reason, where that cannot be done."""
    code = program(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
    if code is None:
        return f"no list of system calls for {sys.platform} on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    kept = ctypes.create_string_buffer(code, len(code))
    made = _Program(len(code) // 8, ctypes.cast(kept, ctypes.c_void_p))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(made), 0, 0) != 0:
        return f"seccomp: errno {ctypes.get_errno()}"
    return None
