"""Tells which format a file has by its first bytes, and compares it with its suffix."""

from typing import Literal

from ckptzoo.hub.untrusted.errors import reject

FileFormat = Literal["safetensors", "torch", "npz", "npy", "pickle"]

SUFFIXES: dict[str, FileFormat] = {
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".th": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".npz": "npz",
}
"""The suffixes that are accepted, and the format of each."""

HEAD_BYTES = 512
"""First bytes of a file that ``format_of`` needs: a block of a tar archive, the longest of the magic numbers."""
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""First bytes of a file of torch.save that is not a zip archive (before torch 1.6): ``MAGIC_NUMBER`` of
``torch.serialization``, pickled."""
_NUMPY = b"\x93NUMPY"
_PLAIN_PICKLE = "a plain pickle, which torch.save did not write"
_OTHER_MAGICS = {
    _NUMPY: "a .npy file: an array without a name",
    b"\x89HDF\r\n": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"\x1f\x8b": "gzip-compressed bytes",
    b"\xfd7zXZ": "xz-compressed bytes",
    b"BZh": "bzip2-compressed bytes",
    b"\x28\xb5\x2f\xfd": "zstd-compressed bytes",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"\x7fELF": "a program",
    b"#!": "a script",
    b"version https://git-lfs": "a pointer to a file that git-lfs has not fetched",
    b"<": "a web page or XML",
}
FORMAT_NAMES = {
    "safetensors": "a safetensors file",
    "torch": "a file of torch.save",
    "npz": "an .npz archive",
    "zip": "a zip archive",
}


def format_of(name: str, head: bytes, *, location: str) -> FileFormat:
    """The format of a file from its name and its first ``HEAD_BYTES`` bytes; ``check_archive`` tells archives apart.

    Raises
    ------
    IntegrityError
        The suffix is none of ``SUFFIXES``, or the content is something else than the suffix says.
    """
    suffix = "." + name.rpartition(".")[2].lower() if "." in name else ""
    if suffix not in SUFFIXES:
        step = "Give a state dict in one of these formats."
        reject(location, "format", "one of " + ", ".join(SUFFIXES), repr(suffix) if suffix else "no suffix", step)
    file_format, content = SUFFIXES[suffix], _describe_content(head)
    accepted = {"safetensors": ("safetensors",), "torch": ("torch", "zip"), "npz": ("zip",)}[file_format]
    if content not in accepted:
        right_suffix = next((end for end, its in SUFFIXES.items() if its == content), None)
        step = (
            f"Rename it to end in {right_suffix}." if right_suffix else f"Give a state dict as {', '.join(SUFFIXES)}."
        )
        reject(
            location,
            "format",
            f"{FORMAT_NAMES[file_format]}, as {suffix} says",
            FORMAT_NAMES.get(content, content),
            step,
        )
    return file_format


def content_format(head: bytes, *, location: str) -> FileFormat | Literal["zip"]:
    """The format of a file that may have any name, from its first ``HEAD_BYTES`` bytes.

    Raises
    ------
    IntegrityError
        It is none that can be read.
    """
    if head.startswith(_NUMPY):
        return "npy"
    content = _describe_content(head)
    if content == _PLAIN_PICKLE:
        return "pickle"
    if content not in FORMAT_NAMES:
        expected = "safetensors, a file of torch.save or of numpy, or a pickle"
        reject(location, "format", expected, content, "Leave it out.")
    return "torch" if content == "torch" else "zip" if content == "zip" else "safetensors"


def _describe_content(head: bytes) -> str:
    """A format's name, or words for what else the bytes are."""
    if not head:
        return "an empty file"
    # safetensors: the length of the header in 8 bytes, then a JSON object.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(LEGACY_MAGIC):
        return "torch"
    for magic, words in _OTHER_MAGICS.items():
        if head.startswith(magic):
            return words
    if head[257:262] == b"ustar":
        return "a tar archive (torch.save before 0.1.10 wrote such)"
    if head[:1] == b"\x80" and head[1:2] in b"\x00\x01\x02\x03\x04\x05":
        return _PLAIN_PICKLE
    return "unknown bytes"
