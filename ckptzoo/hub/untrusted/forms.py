"""The registry of forms: what each file is, and what reads it."""

import re

from ckptzoo.hub.untrusted import gguf_files, hdf5_files, msgpack_files, numpy_files, safetensors, torch_files
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import CONTAINERS, NOT_READ, NOT_READ_BY_PATH, UNKNOWN, FileForm

READ: tuple[FileForm, ...] = (
    torch_files.TORCH,
    safetensors.SAFETENSORS,
    numpy_files.NPZ,
    numpy_files.NPY,
    torch_files.PICKLE,
    hdf5_files.HDF5,
    gguf_files.GGUF,
    msgpack_files.MSGPACK,
)
"""Forms that are read, the most frequent first."""
FORMS: dict[str, FileForm] = {form.name: form for form in (*NOT_READ_BY_PATH, *READ, *NOT_READ, *CONTAINERS, UNKNOWN)}
"""Every form by its name."""
_BY_CONTENT = tuple(
    (form, form.recognises)
    # a zip archive is one of files where it is none of the other forms that are zip archives
    for form in (*READ[:-1], *NOT_READ[:-1], *CONTAINERS, READ[-1], NOT_READ[-1])
    if form.recognises is not None
)
_BY_PATH = re.compile("|".join(f"(?P<{form.name.replace('-', '_')}>{form.paths})" for form in NOT_READ_BY_PATH))
_PLAIN_ENDS = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".pkl", ".h5")
_MARKS = re.compile(r"rank_|model_states|consolidated\.|openvino_|--|ocdbt|\.zarr/|array_metadatas/|/d/")
"""Marks of paths: one with such an ending and none of these, as most have, is of no form that its path shows."""
_STRICT = ("safetensors", "torch", "npz")
"""Forms of files in contributions."""


def form_of(head: bytes, path: str) -> FileForm:
    r"""Tell the form of a file by its first ``HEAD_BYTES`` bytes and its path or name.

    Examples
    --------
    >>> form_of(b"\x93NUMPY\x01\x00", "w.bin").name, form_of(b"", "step-3/__0_0.distcp").name
    ('npy', 'dcp')
    """
    is_plain = path.endswith(_PLAIN_ENDS) and _MARKS.search(path) is None
    if not is_plain and (named := _BY_PATH.search(path)) is not None and named.lastgroup is not None:
        return FORMS[named.lastgroup.replace("_", "-")]
    return next((form for form, recognises in _BY_CONTENT if recognises(head, path)), UNKNOWN)


def read_form(head: bytes, path: str, *, location: str, strict: bool = False) -> FileForm:
    """Return the form of a file that is to be read, with ``strict`` only one that may be contributed; raise
    ``IntegrityError`` for others.
    """
    form = form_of(head, path)
    accepted = [FORMS[name] for name in _STRICT] if strict else READ
    if form not in accepted or not form.is_read:
        expected = ", ".join(item.words for item in accepted[:-1]) + f" or {accepted[-1].words}"
        step = form.next_step
        if strict and form in READ:
            step = "Save its tensors with safetensors, torch.save or numpy.savez."
        elif form.is_container:
            step = "Unpack it, and give the files."
        reject(location, "format", expected, form.words, step or "Leave it out.")
    return form
