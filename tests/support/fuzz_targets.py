"""What meets bytes that strangers made: for each parser some sound inputs, and a call that may refuse and nothing else."""

import atexit
import fnmatch
import hashlib
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.format import part, snapshot
from ckptzoo.format.files import check_span, folders_of
from ckptzoo.format.header import read_header
from ckptzoo.format.reader import read_trees
from ckptzoo.hub.contributions.submission import Submission
from ckptzoo.hub.untrusted.formats import LEGACY_MAGIC
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import parse, unseal
from ckptzoo.schema.layout import Span
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.server import names
from ckptzoo.server.errors import Refusal
from ckptzoo.server.request import parsed_json
from ckptzoo.server.responses import front_matter, requested_range
from ckptzoo.server.store import git_objects
from tests.support.derived_zoos import ARCH, weights_of

REFUSALS = (ZooError, Refusal)


@dataclass(frozen=True)
class FuzzTarget:
    """A parser.

    Parameters
    ----------
    seeds
        sound inputs.
    parse
        raises one of ``refusals`` where an input is unsuitable; anything else that it raises is a fault.
    """

    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = REFUSALS


def attempt(target: FuzzTarget, data: bytes) -> None:
    """Parse an input; it may be refused."""
    try:
        target.parse(data)
    except target.refusals:
        return


@cache
def _files() -> dict[str, bytes]:
    """Those of a small zoo with a symmetry table."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "zoo"
        with ckptzoo.create(root, arch=ARCH, symmetry=ckptzoo.archs.symmetry("optunet")) as writer:
            writer.add(weights_of(3, 0), [{"id": f"net-{number}", "seed": number} for number in range(3)])
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _in_zoo(pattern: str) -> bytes:
    (name,) = fnmatch.filter(_files(), pattern)
    return _files()[name]


def _header() -> bytes:
    data = _in_zoo("parts/*/raw-00.safetensors")
    return data[: 8 + int.from_bytes(data[:8], "little")]


def _read_header(data: bytes) -> object:
    size = len(_in_zoo("parts/*/raw-00.safetensors"))
    return read_header(data[8:], file_size=size + len(data) - len(_header()), location="fuzz")


def _part() -> part.Part:
    (name,) = {name.split("/")[1] for name in _files() if name.startswith("parts/")}
    return part.decode_index(_in_zoo("parts/*/index.parquet"), layout.PARTS, name, location="fuzz")[0]


def _sealed(data: bytes) -> bytes:
    """A table with the seal of its own bytes, where it has room for one: whoever writes a table can seal it."""
    start = data.rfind(b'"seal":"') + 8
    if start < 8 or len(data) < start + 64:
        return data
    blank = data[:start] + b"0" * 64 + data[start + 64 :]
    return data[:start] + hashlib.sha256(blank).hexdigest().encode() + data[start + 64 :]


class MemoryFiles:
    """Files of a zoo in memory, by their paths."""

    here = None

    def __init__(self, data: dict[str, bytes]) -> None:
        self.name, self._data = "fuzz", data

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        return len(self._data[name]) if name in self._data else None

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names in a folder."""
        return folders_of(self._data).get(folder, ())

    def read(self, name: str, *, max_bytes: int = 2**30) -> bytes:
        """A whole file."""
        return self._data[name]

    def read_many(self, names: Sequence[str], *, max_bytes: int = 2**30) -> list[bytes]:
        """Whole files."""
        return [self._data[name] for name in names]

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files; their digests are checked."""
        pieces = [self._data[span.name][span.start : span.stop] for span in wanted]
        for data, span in zip(pieces, wanted, strict=True):
            check_span(data, span, location=self.name)
        return pieces


@cache
def _snapshot() -> tuple[str, bytes]:
    """A snapshot's name and its bytes."""
    return snapshot.encode(read_trees(MemoryFiles(_files())))


def _read_snapshot(data: bytes) -> None:
    """Everything that a snapshot holds; whoever writes one names it by its bytes."""
    count, size, _ = _snapshot()[0].split("/")[1].split("-")
    digest = hashlib.sha256(data[max(0, len(data) - int(size)) :]).hexdigest()
    name = f"{count}-{size}-{digest}.parquet"
    opened = snapshot.Snapshot(MemoryFiles({f"{layout.SNAPSHOTS}/{name}": data}), name)
    for tree in opened.parts:
        read = opened.tree(tree)
        assert len(read.metadata) == len(read.rows) and len(read.index) == len(read.blocks)


def _documents(data: bytes) -> None:
    content, _ = unseal(data, location="fuzz")
    for kind in (Architecture, Symmetry):
        try:
            kind.from_json(content, location="fuzz")
        except REFUSALS:
            continue


def _contents(data: bytes) -> None:
    """What is behind the seal, for any content: whoever writes a document can seal it."""
    content = parse(data, location="fuzz")
    content.pop("digest", None)
    for kind in (Architecture, Symmetry):
        try:
            kind.from_json(content, location="fuzz")
        except REFUSALS:
            continue


def _pickled() -> tuple[bytes, ...]:
    """Files of torch in the old format, which is pickles and then numbers, without checksums."""
    made: list[bytes] = []
    for value in ({"w": torch.ones(2, 3), "n": 3}, {"state_dict": {"b": torch.nn.Parameter(torch.zeros(2))}}):
        buffer = io.BytesIO()
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
        made.append(buffer.getvalue())
    return tuple(made)


@cache
def _reading_process() -> ReadingProcess:
    process = ReadingProcess(Limits(pickle_bytes=2**20, tensor_bytes=2**26, memory_bytes=2**29, seconds=20))
    atexit.register(process.close)
    return process


def _read_pickle(data: bytes) -> None:
    """Pickles may ask for memory without end, so that they are read in a process of their own."""
    file_format = "torch" if data.startswith(LEGACY_MAGIC) else "pickle"
    ((answer,), _) = _reading_process().read([Job("fuzz", file_format, len(data), strict=False)], [data])
    if isinstance(answer, ZooError):
        raise answer


def _names(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for check in (names.decoded, names.checked_id, names.checked_branch, names.checked_path):
        try:
            check(text)
        except REFUSALS:
            continue
    layout.PART_NAME.fullmatch(text)


def _pointers(data: bytes) -> None:
    if git_objects.is_pointer(data):
        git_objects.pointer_file(data)


def _toml(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        for kind in (Submission, Card):
            try:
                kind.from_toml(file.name)
            except REFUSALS:
                continue


@cache
def targets() -> dict[str, FuzzTarget]:
    """Every parser by name."""
    template = Path(__file__).parents[2] / "cards" / "template"
    one = _part()
    return {
        "safetensors-header": FuzzTarget((_header(),), _read_header),
        "index": FuzzTarget(
            (_in_zoo("parts/*/index.parquet"),),
            lambda data: part.decode_index(_sealed(data), layout.PARTS, one.name, location="fuzz"),
        ),
        "rows": FuzzTarget(
            (_in_zoo("parts/*/metadata.parquet"),), lambda data: part.decode_rows(_sealed(data), one, location="fuzz")
        ),
        "snapshot": FuzzTarget((_snapshot()[1],), _read_snapshot),
        "documents": FuzzTarget((_in_zoo("architecture.json"), _in_zoo("symmetry.json")), _documents),
        "contents": FuzzTarget((_in_zoo("architecture.json"), _in_zoo("symmetry.json")), _contents),
        "pickle": FuzzTarget(_pickled(), _read_pickle),
        "toml": FuzzTarget(
            ((template / "contribution.toml").read_bytes(), (template / "card.toml").read_bytes()), _toml
        ),
        "names": FuzzTarget((b"lab/zoo", b"refs/pr/1", b"parts/000001-01234567/raw-00.safetensors", b"a%20b"), _names),
        "pointer": FuzzTarget((git_objects.pointer("0" * 64, 123_456),), _pointers),
        "range": FuzzTarget(
            (b"bytes=0-99", b"bytes=100-", b"bytes=-5", b"bytes=0-1,3-4"),
            lambda data: requested_range(data.decode("latin-1"), 10_000),
        ),
        "json": FuzzTarget((b'{"comment": "x", "n": [1, 2.5, null, true]}',), parsed_json, (ValueError,)),
        "front-matter": FuzzTarget(
            (b"---\nlicense: mit\ntags:\n- a\n- b\nconfigs:\n- {config_name: x}\n---\n# x\n",),
            lambda data: front_matter(data.decode("utf-8", "replace")),
            (ValueError,),
        ),
    }
