"""Reads checkpoint files that somebody else made: as data, in a process of their own.

Threat model
------------
Anybody may hand over a file. A file of ``torch.save`` is a pickle, a program that its reader executes. Any format can
lie about sizes to exhaust memory, time or disk, and can be damaged so that a native library crashes.

*Trusted*: this package, Python, numpy, the C library and the kernel, and the person who runs them.

*Not trusted*: every byte of the file, its name, and whatever the process that has read it sends back.

========================== ============================================================================================
layer                      what it does
========================== ============================================================================================
``forms``, ``archives``    tell what a file is by its content, and refuse what is not read; archives that unpack to too
                           much, lead out of themselves, overlap, hold two directories, or whose checksums are wrong
``inert``                  reads pickles with classes of its own alone: nothing that a pickle names is imported or
                           called, in files within files too
``tensor_forms``           reads sparse tensors whose indices are checked; tensors of other forms are refused by name
``rules``                  of what is contributed, refuse everything but dense tensors and plain containers, by name
a process of its own       a crash or a hang ends that process alone, and the file is refused; it has no environment
                           variables, no descriptors but its pipes, and an empty working folder
limits                     its memory; the time of a request, after which it is killed; the bytes that it may write to
                           a file (1 MiB, for the error that ends it); the sizes of files, tensors and answers
``protocol.read_answer``   an answer that a sound reading process would not give: it is parsed as untrusted data too
========================== ============================================================================================

What keeps code from running is ``inert``. The process is there because memory, time and the interpreter's stack can be
exhausted without any code. safetensors files are a JSON header and numbers, and are parsed in the program itself.

Not covered: errors of the kernel or of the trusted libraries that all layers share, and what a network does with
weights that are well formed.
"""

from ckptzoo.hub.untrusted.api import read, read_all
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import FileResult, StateDict

__all__ = ["FileResult", "Limits", "StateDict", "read", "read_all"]
