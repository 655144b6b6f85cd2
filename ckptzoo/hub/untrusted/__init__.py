"""Reads checkpoint files that somebody else made: as data, in a sandboxed process; what is unsuitable is refused.

Threat model
------------
Anybody may hand over a file. A file of ``torch.save`` is a pickle, a program that its reader executes: it could run
code, read tokens, reach the network or change files. Any format can lie about sizes to exhaust memory, time or disk,
and can be damaged so that a native library crashes.

*Trusted*: this package, Python, numpy, torch, the C library and the kernel, and the person who runs them.

*Not trusted*: every byte of the file, its name, and whatever the process that has read it sends back.

Each layer assumes that the ones before it failed:

========================== ============================================================================================
layer                      what it stops
========================== ============================================================================================
``formats``                content that is not what the suffix says; archives that unpack to too much, lead out of
                           themselves, overlap, or hold two directories
``pickle_scan``            globals other than those of dense tensors and plain containers, unknown operations, tensors
                           outside their storage, sizes above the limits; nothing is executed
``weights_only=True``      torch's own restricted unpickler: what the scan understood otherwise than torch does
a process for each file    a crash or a hang ends that process alone; it has no environment variables, no descriptors
                           but its three files, and an empty working folder; it is killed after ``Limits.seconds``
resource limits            memory, processor time, bytes written, open files, processes, core dumps
network namespace          connections: the process has no network device that is up
filter on system calls     sockets, opening files by name, starting processes, signals, tracing, executable memory
audit hook                 the same from Python code, with a clear error; native code does not pass it, so that it is
                           never counted as a barrier
``protocol.read_result``   an answer that a sound reading process would not give: it is parsed as untrusted data too
========================== ============================================================================================

A pickle is read only where the namespace or the filter is in force; .npz files, which hold no code, are read without
them. ``StateDict.guards`` lists what was in force. safetensors files are a JSON header and numbers, and are parsed in
the program itself.

Not covered: errors of the kernel or of the trusted libraries that all layers share, and what a network does with
weights that are well formed.
"""

from ckptzoo.hub.untrusted.api import read, read_all
from ckptzoo.hub.untrusted.formats import SUFFIXES
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import FileResult, StateDict

__all__ = ["SUFFIXES", "FileResult", "Limits", "StateDict", "read", "read_all"]
