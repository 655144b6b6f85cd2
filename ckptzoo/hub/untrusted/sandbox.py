"""Sandboxes a process before it reads an untrusted file: limits, no network, few system calls, no opening of files.

The kernel's limits bound memory, time and the bytes written. A network namespace without devices and a filter on system
calls each cut off the network: one of them is enough, both are used where the machine allows it. An audit hook of the
interpreter refuses what Python code would try; it is not a barrier by itself. ``ckptzoo.hub.untrusted`` has the threat
model.

The filter is a small BPF program (``seccomp(2)``) that allows what it takes to turn bytes in open files into other
bytes in open files. Everything that is not listed fails with EPERM: sockets, opening files, starting processes, signals
to others, tracing. Memory can be mapped, but never as code.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import MAX_REPORT

# The numbers here are the kernel's, of linux/audit.h, linux/bpf_common.h, linux/seccomp.h, linux/prctl.h, linux/sched.h
# and of the tables of system calls.
_X86, _ARM = 0xC000003E, 0xC00000B7
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64."""
_ALLOWED_CALLS = {  # name: number on x86-64, number on aarch64
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
_MAPPING_CALLS = {"mmap": (9, 222), "mprotect": (10, 226)}
"""Allowed where the third argument does not ask for executable memory."""
_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
"""Instructions: load a word, jump if equal, jump if any bit is set, return."""
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
"""SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_KILL_PROCESS."""
_NUMBER, _ARCH, _THIRD = 0, 4, 32
"""Where in ``struct seccomp_data`` the call's number, the machine and the third argument are."""
_EXECUTABLE = 4
"""PROT_EXEC."""
_DEATH_SIGNAL, _DUMPABLE, _SET_SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
"""What ``prctl`` sets; a filter needs the last, so that no program with other privileges inherits it."""
_MODE_FILTER = 2
_NEW_NET, _NEW_USER, _NEW_IPC = 0x40000000, 0x10000000, 0x08000000
_MAX_FILES = 16
"""Descriptors that the process may have; it needs 5."""
_REFUSED_EVENTS = (
    "socket.",
    "subprocess.",
    "os.",
    "ctypes.",
    "shutil.",
    "pty.",
    "webbrowser.",
    "ftplib.",
    "urllib.",
    "fcntl.",
)
"""How the audit events begin that are refused; CPython's documentation has a table of them."""


def filter_program(machine: str) -> bytes | None:
    """The filter's instructions for a machine as ``platform.machine()`` names it; None where it is not known."""
    column = {"x86_64": 0, "aarch64": 1}.get(machine)
    if column is None:
        return None
    instructions = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, (_X86, _ARM)[column]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for numbers in _MAPPING_CALLS.values():
        instructions += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _THIRD), (_ANY, 0, 1, _EXECUTABLE)]
        instructions += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    for numbers in _ALLOWED_CALLS.values():
        instructions += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    instructions.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *step) for step in instructions)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install_filter() -> str | None:
    """Put the filter on this process, for good; returns the reason where that cannot be done."""
    code = filter_program(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
    if code is None:
        return f"no list of system calls for {sys.platform} on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        return f"seccomp: errno {ctypes.get_errno()}"
    return None


def leave_network() -> str | None:
    """Move this process, which must have one thread, to a network without devices; returns why that cannot be done."""
    if sys.platform != "linux":
        return f"no network namespaces on {sys.platform}"
    libc = ctypes.CDLL(None, use_errno=True)
    before = _network_namespace()
    # A user namespace lets a process without privileges make the others; where those are forbidden, root needs none.
    for flags in (_NEW_USER | _NEW_NET | _NEW_IPC, _NEW_NET):
        if libc.unshare(flags) == 0 and _network_namespace() != before:
            return None
    return os.strerror(ctypes.get_errno())


def _network_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def set_limits(limits: Limits) -> None:
    """Set the kernel's limits on this process; it dies with the one that started it, and leaves no core file."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_proc() else 0
    max_written = limits.tensor_bytes + MAX_REPORT
    for resource_kind, soft, extra in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_AS, used + limits.memory_bytes, 0),
        (resource.RLIMIT_FSIZE, max_written, 0),
        (resource.RLIMIT_NPROC, 0, 0),  # the kernel does not enforce it for root: the filter has to
        (resource.RLIMIT_NOFILE, _MAX_FILES, 0),
        (resource.RLIMIT_CPU, max(1, limits.cpu_seconds), 5),  # SIGXCPU, and SIGKILL 5 seconds later
    ):
        hard = resource.getrlimit(resource_kind)[1]
        ceiling = soft + extra if hard == resource.RLIM_INFINITY else min(soft + extra, hard)
        resource.setrlimit(resource_kind, (min(soft, ceiling), ceiling))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DEATH_SIGNAL, 9, 0, 0, 0)  # SIGKILL when the parent ends
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # no core file, and no tracing by other processes of the user
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


def _has_proc() -> bool:
    return Path("/proc/self/statm").exists()


def install_audit_hook() -> None:
    """Refuse, inside the interpreter, sockets, processes, foreign code and every opening of a file by name."""

    def refuse(event: str, arguments: Sequence[Any]) -> None:
        if event.startswith(_REFUSED_EVENTS) or (event == "open" and not isinstance(arguments[0], int)):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)


def enter_sandbox(limits: Limits, *, filtered: bool) -> None:
    """Sandbox this process: limits, filter, audit hook, in the order in which they can be set.

    ``leave_network`` was called before, by the process that forked this one.

    Parameters
    ----------
    filtered : whether ``probe_sandbox`` found that the filter works; it must then work here too.

    Raises
    ------
    OSError
        It does not work.
    """
    set_limits(limits)
    if (reason := install_filter()) is not None and filtered:
        raise OSError(reason)
    install_audit_hook()


def probe_sandbox(limits: Limits) -> tuple[str | None, str | None]:
    """Try the filter and the limits in a process that ends at once: why each does not work, or None.

    Notes
    -----
    The filter counts as working when sockets, opening a file and starting a process are refused once it is installed;
    that the kernel accepted it is not enough.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            set_limits(limits)
            limited = b""
        except (OSError, ValueError) as error:
            limited = f"{type(error).__name__}: {error}".encode()[:200]
        reason = install_filter()
        libc = ctypes.CDLL(None, use_errno=True)
        if reason is None:
            results = [libc.socket(2, 1, 0), libc.socket(1, 1, 0), libc.open(b"/dev/null", 0), libc.fork()]
            if results[3] == 0:
                os._exit(0)
            reason = "" if all(one == -1 for one in results) else "calls that were to be refused were not"
        os.write(writing, limited + b"\n" + (reason or "").encode()[:200] + b"\n")
        os._exit(0)
    os.close(writing)
    answer = b""
    while piece := os.read(reading, 1024):
        answer += piece
    os.close(reading)
    os.waitpid(child, 0)
    limited, _, rest = answer.decode(errors="replace").partition("\n")
    reason = rest.removesuffix("\n") if rest.endswith("\n") else "the filter ended the process"
    return reason or None, limited or None
