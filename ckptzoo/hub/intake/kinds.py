"""Which format a file has: what its name says, and what its first bytes say."""

from typing import Literal

from ckptzoo.hub.intake.found import refuse

Kind = Literal["safetensors", "torch", "npz"]

SUFFIXES: dict[str, Kind] = {
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".th": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".npz": "npz",
}
"""The suffixes that are accepted, and the format each stands for."""

HEAD = 512
"""So many first bytes are needed."""
LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""What a file of torch.save begins with that is not a zip archive (before torch 1.6)."""
_OTHERS = {
    b"\x93NUMPY": "a .npy file: an array without a name",
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
NAMES = {
    "safetensors": "a safetensors file",
    "torch": "a file of torch.save",
    "npz": "an .npz archive",
    "zip": "a zip archive",
}


def kind_of(name: str, head: bytes, *, where: str) -> Kind:
    """The format of a file from its name and its first ``HEAD`` bytes; zip archives are told apart once unpacked.

    Raises
    ------
    IntegrityError
        The suffix is none of ``SUFFIXES``, or the content is something else than the suffix says.
    """
    suffix = "." + name.rpartition(".")[2].lower() if "." in name else ""
    if suffix not in SUFFIXES:
        step = "Give a state dict in one of these formats."
        refuse(where, "format", "one of " + ", ".join(SUFFIXES), repr(suffix) if suffix else "no suffix", step)
    kind, content = SUFFIXES[suffix], _content(head)
    fits = {"safetensors": ("safetensors",), "torch": ("torch", "zip"), "npz": ("zip",)}[kind]
    if content not in fits:
        other = next((end for end, its in SUFFIXES.items() if its == content), None)
        step = f"Rename it to end in {other}." if other else f"Give a state dict as {', '.join(SUFFIXES)}."
        refuse(where, "format", f"{NAMES[kind]}, as {suffix} says", NAMES.get(content, content), step)
    return kind


def _content(head: bytes) -> str:
    """A format's name, or words for what else the bytes are."""
    if not head:
        return "an empty file"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(LEGACY):
        return "torch"
    for magic, words in _OTHERS.items():
        if head.startswith(magic):
            return words
    if head[257:262] == b"ustar":
        return "a tar archive (torch.save before 0.1.10 wrote such)"
    if head[:1] == b"\x80" and head[1:2] in b"\x00\x01\x02\x03\x04\x05":
        return "a plain pickle, which torch.save did not write"
    return "unknown bytes"
