"""Names of the files and folders of a zoo, and which names are accepted in untrusted zoos."""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from ckptzoo.errors import Problem, ZooError

FORMAT = "ckptzoo"
VERSION = 1
REFERENCES_VERSION = 2
"""The version of a zoo whose raw weights lie in files of others, so that earlier readers refuse it."""

ZOO = "zoo.json"
ARCHITECTURE = "architecture.json"
SYMMETRY = "symmetry.json"
DOCUMENTS = (ARCHITECTURE, SYMMETRY, ZOO)
"""Written once, in this order, and never replaced: a folder with the last one is a zoo."""
COLLECTION, COLLECTION_ROWS = "collection.json", "collection.parquet"
"""The files of a collection, a folder of zoos."""
README = "README.md"
CROISSANT = "croissant.json"
PARTS = "parts"
DERIVED = "derived"
SNAPSHOTS = "snapshots"
PICTURES = "pictures"
SPLITS = "splits"
RELEASES = "releases"
REPRODUCED = "reproduced"
LANDSCAPE = "landscape"
PAGES = "pages"
EXPLORER = f"{PAGES}/explorer.html"
"""The file of the page that shows a zoo."""
METADATA = "metadata.parquet"
INDEX = "index.parquet"
REFERENCES = "references.parquet"
"""In a raw part without shards: where its weights are in files of others."""

GaugeName = Literal["canonical", "first-weight", "unit-norm", "unit-std", "min-mass"]
"""The gauges of ``ckptzoo.symmetry``, which is tested to have these; also the names of the variants they make."""
RAW = "raw"
"""The variant whose weights are as trained; its shards are ``raw-00.safetensors``, ..."""
ELEMENT = "g"
"""The stem of the shards that hold a variant's group element."""
RETRACTED = "retracted"
"""The derived tree of tombstones."""
MEASURED = "measured"
"""The derived tree of figures that were measured later."""
DIGESTS = "digests"
"""The derived tree of digests of weights that lie in files of others."""
ROWS_ALONE = (RETRACTED, MEASURED, DIGESTS)
"""Derived trees without shards, in which a checkpoint may have several rows."""
PREDICTIONS = "predictions"
"""The prefix of the names of derived trees of predictions; also the stem of their shards."""

PART_NAME = re.compile(r"(\d{6})-([0-9a-f]{8})")
"""Sequence number and the beginning of the digest; see ``part_name``."""
MAX_PARTS = 10_000
"""The maximum of parts of a tree that is published: huggingface.co takes no more entries in a folder."""
MANY_PARTS = 9_000
"""The number of parts of a tree beyond which a writer warns."""
MAX_SEQUENCE = 999_999
"""The last sequence number: names of seven digits are no names of parts, and no reader finds them."""
SET_ASIDE = "Move the part that should not be there out of the zoo, and keep it until you know that it is wrong."
"""The next step for parts that contradict one another: their bytes do not say which of them is wrong."""
SHARD_NAME = re.compile(r"([a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?)-(\d{2,6})\.safetensors")
SNAPSHOT_NAME = re.compile(r"(\d{6})-(?:([1-9]\d{0,9})-)?([0-9a-f]{64})\.parquet")
"""Parts covered, bytes of the tail (none in those whose digest is the whole file's), sha256 of the tail."""
ALIGNED = "aligned-"
"""The prefix of the names of variants that are aligned with a reference."""
DERIVED_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
SPLIT_FILE = re.compile(rf"({DERIVED_NAME.pattern})\.json")
RELEASE_NAME = re.compile(
    r"(?!stable$|main$|head$|[0-9a-f]{40,64}$)(?!.*(?:\.\.|\.lock$))[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?"
)
"""A name that is a tag of git too (git-check-ref-format(1)), and neither a branch nor what reads like a commit."""
RELEASE_FILE = re.compile(r"([a-z0-9.-]{1,64})\.json")
REPRODUCTION_FILE = re.compile(r"[0-9a-f]{16}\.json")
LANDSCAPE_FILE = re.compile(r"[0-9a-f]{16}\.parquet")
SET_NAME = re.compile(r"(?=.{3,51}\Z)([a-z0-9]+(?:-[a-z0-9]+)*)/([a-z0-9]+(?:-[a-z0-9]+)*)")
"""A set of inputs: a data set and which of its examples, as ``fashion-mnist/test``."""


def is_folder_name(text: str) -> bool:
    """Whether it is the name of one folder, so that it does not lead out of the collection that it is in."""
    # a backslash leads out of a folder on Windows
    return text not in ("", ".", "..") and "/" not in text and "\\" not in text and text.isprintable()


def split_file(name: str) -> str:
    """``splits/main.json`` for the split ``main``."""
    return f"{SPLITS}/{name}.json"


def release_file(name: str) -> str:
    """``releases/2026-12.json`` for the release ``2026-12``."""
    return f"{RELEASES}/{name}.json"


def release_names(files: Iterable[str]) -> tuple[str, ...]:
    """The names of releases whose documents are among some files of the folder ``releases``, in order."""
    matches = (RELEASE_FILE.fullmatch(file) for file in files)
    return tuple(sorted(match[1] for match in matches if match and RELEASE_NAME.fullmatch(match[1])))


def reproduction_file(digest: str) -> str:
    """``reproduced/9f2c41aa01234567.json`` for a mark whose content has the digest ``sha256:9f2c41aa01234567...``."""
    return f"{REPRODUCED}/{digest.removeprefix('sha256:')[:16]}.json"


def reproduction_files(files: Iterable[str]) -> tuple[str, ...]:
    """The paths of marks whose documents are among some files of the folder ``reproduced``, in order."""
    return tuple(f"{REPRODUCED}/{file}" for file in sorted(files) if REPRODUCTION_FILE.fullmatch(file))


def landscape_file(seal: str) -> str:
    """``landscape/9f2c41aa01234567.parquet`` for a file whose seal is ``9f2c41aa01234567...``."""
    return f"{LANDSCAPE}/{seal[:16]}.parquet"


def landscape_files(files: Iterable[str]) -> tuple[str, ...]:
    """The paths of tables of figures that are among some files of the folder ``landscape``, in order."""
    return tuple(f"{LANDSCAPE}/{file}" for file in sorted(files) if LANDSCAPE_FILE.fullmatch(file))


def predictions_name(inputs: str) -> str:
    """``predictions-fashion-mnist--test`` for ``fashion-mnist/test``: each name follows from the other."""
    return f"{PREDICTIONS}-{inputs.replace('/', '--')}"


def set_name(tree: str) -> str | None:
    """The set of inputs of a derived tree of predictions, by its name; None where that is no such name.

    >>> set_name("predictions-fashion-mnist--test"), set_name("canonical")
    ('fashion-mnist/test', None)
    """
    inputs = tree.removeprefix(f"{PREDICTIONS}-").replace("--", "/")
    return inputs if SET_NAME.fullmatch(inputs) and predictions_name(inputs) == tree else None


def folder_problem(location: str, count: int, limit: int | None = None) -> Problem | None:
    """Return the problem of a folder with more parts than a limit, by default ``MAX_PARTS``; None of one with fewer."""
    if count <= (MAX_PARTS if limit is None else limit):
        return None
    step = "Write a zoo of few parts from it: ckptzoo compact ZOO --merge-parts --to NEWZOO."
    room = f"at most {MAX_PARTS:,}, the entries of a folder on a hub"
    return Problem(location, "parts", room, f"{count:,}", step)


def next_sequence(names: Iterable[str], *, location: str) -> int:
    """The number of the part behind those of these names, 1 for the first; names of anything else are left out.

    >>> next_sequence(["000003-9f2c41aa", "README.md"], location="parts")
    4

    Raises ``ZooError`` if there is a part with the last number.
    """
    last = "000000"
    for name in names:
        # six digits each, so that names are in the order of numbers; few of thousands are compared with the pattern
        if name > last and PART_NAME.fullmatch(name):
            last = name
    if (sequence := int(last[:6]) + 1) > MAX_SEQUENCE:
        step = f"Give {last} the number behind the part before it; its digest does not cover its number."
        raise ZooError(Problem(location, "number of the next part", f"at most {MAX_SEQUENCE}", str(sequence), step))
    return sequence


def part_name(sequence: int, digest: str) -> str:
    """``000003-9f2c41aa`` for the third part with a digest ``sha256:9f2c41aa...``."""
    return f"{sequence:06d}-{digest.removeprefix('sha256:')[:8]}"


def shard_name(stem: str, number: int) -> str:
    """``raw-00.safetensors`` for the first shard of ``raw``."""
    return f"{stem}-{number:02d}.safetensors"


class Span(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file, at least one, and the sha256 of these bytes."""

    name: str
    start: int
    stop: int
    sha256: bytes
