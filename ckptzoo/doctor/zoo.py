"""Whether a zoo opens, what speeds its opening up, what is not derived yet, and whether one block is what it was."""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

import ckptzoo
from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.doctor.machine import file_system
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format import snapshot
from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import Tree
from ckptzoo.loader.derived_command import derived_command
from ckptzoo.loader.shard_index import ShardIndex
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.symmetry import GAUGES
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.text import counted, size

_SOME_PARTS = 8
"""The number of parts from which a zoo opens slowly without a snapshot."""


def checks(address: str) -> Iterator[Check]:
    """Open a zoo, in a folder or at an address that ``ckptzoo.open`` takes, and check it."""
    if Path(address, layout.ZOO).is_file():
        yield file_system("file system of the zoo", Path(address, layout.ZOO))
    try:
        with warnings.catch_warnings(record=True) as warned:
            # each here, also where the same was shown before in this process
            warnings.simplefilter("always")
            zoo = ckptzoo.open(address)
    except ZooError as error:
        step = f"ckptzoo verify {quote(address)} lists what is damaged." if isinstance(error, IntegrityError) else ""
        yield Check("zoo", PROBLEM, str(error), step if Path(address).is_dir() else "")
        return
    contents = zoo.contents
    try:
        _read_rows(contents.raw)
    except ZooError as error:
        yield Check("zoo", PROBLEM, str(error), f"ckptzoo verify {quote(address)} lists what is damaged.")
        return
    detail = f"{zoo.name}: {counted(len(zoo), 'checkpoint')} of {zoo.arch.name}"
    yield Check(
        "zoo", OK, f"{detail} in {counted(len(contents.raw.parts), 'part')}, format {contents.identity.version}"
    )
    for warning in warned:
        yield Check("zoo", NOTE, str(warning.message))
    command = _command(zoo)
    yield _snapshot(contents, command)
    for name in contents.derived_parts:
        if name != layout.MEASURED:
            yield from _derived(contents, name, command)
    yield _block(contents, command)


def _read_rows(tree: Tree) -> None:
    """Read one column of the rows, which checks the seal of every file; raise ``IntegrityError`` for damage."""
    for _ in tree.rows.runs(tree.rows.schema.names[:1]):
        pass


def _command(zoo: Zoo) -> str:
    """Return the zoo in commands that change it: its folder, or what stands for one that it was pulled into."""
    return "FOLDER" if zoo.contents.files.here is None else str(zoo.contents.files.here)


def _snapshot(contents: Contents, command: str) -> Check:
    files, used = contents.files, contents.snapshot
    parts = len(contents.raw.parts) + sum(map(len, contents.derived_parts.values()))
    names = snapshot.listed(files)
    step = f"ckptzoo compact {quote(command)}"
    if names and (used is None or not used.location.endswith(names[0])):
        detail = f"{names[0]} cannot be used: damaged, or of parts that are not there"
        return Check("snapshot", PROBLEM, detail, f"Remove it, and run {step}.")
    try:
        if used is not None and files.here is not None:
            used.check()
    except IntegrityError as error:
        return Check("snapshot", PROBLEM, str(error), f"Remove it, and run {step}.")
    covered = 0 if used is None else sum(len(stored) for tree, stored in used.parts.items() if _is_current(tree))
    behind = parts - covered
    if used is None:
        detail = f"none: opening reads {counted(parts, 'part')}"
        return Check("snapshot", NOTE, detail, step) if parts >= _SOME_PARTS else Check("snapshot", OK, detail)
    detail = f"covers {covered:,} of {counted(parts, 'part')}"
    return Check("snapshot", NOTE, detail, step) if behind >= _SOME_PARTS else Check("snapshot", OK, detail)


def _is_current(tree: str) -> bool:
    return tree != f"{layout.DERIVED}/{layout.RETRACTED}"


def _derived(contents: Contents, name: str, command: str) -> Iterator[Check]:
    """Check a variant, or outputs on a set of inputs: its number of checkpoints, and its version."""
    inputs = layout.set_name(name)
    title = f"variant {name}" if inputs is None else f"predictions {inputs}"
    try:
        tree = contents.derived(name)
        _read_rows(tree)
    except ZooError as error:
        yield Check(title, PROBLEM, str(error), f"ckptzoo verify {quote(command)} lists what is damaged.")
        return
    count, total = len(tree.rows), len(contents.raw.rows)
    if count < total:
        detail = f"{count:,} of {counted(total, 'checkpoint')}; {total - count:,} came later"
        yield Check(title, NOTE, detail, derived_command(contents, inputs or name, command))
    else:
        yield Check(title, OK, counted(count, "checkpoint"))
    version, gauge = tree.parts[-1].facts.get("version"), GAUGES.get(name)
    if gauge is not None and contents.symmetry is not None:
        gauge = gauge_of(gauge.name, contents.symmetry)
    if gauge is not None and version != gauge.version:
        detail = f"made by version {version} of the gauge, which is at version {gauge.version} now"
        yield Check(title, NOTE, detail, "Checkpoints that come are derived by the same version of ckptzoo only.")


def _block(contents: Contents, command: str) -> Check:
    """Read the last block of the first tensor in the last part of a tree that holds weights; compare its digest."""
    if contents.identity.references and len(contents.raw.rows):
        return _file(contents, command)
    for stems, tree in _trees(contents):
        index = ShardIndex(contents.files, tree, contents.architecture)
        for stem in stems:
            tensor = next(index.tensors(stem), None)
            if tensor is None or not len(index.locations(stem, tensor).entries):
                continue
            locations = index.locations(stem, tensor)
            (span,) = index.spans(locations, [len(locations.entries) - 1])
            try:
                contents.files.spans([span])
            except ZooError as error:
                return Check(
                    "one block", PROBLEM, str(error), f"ckptzoo verify {quote(command)} lists all that is damaged."
                )
            what = f"{size(span.stop - span.start)} of {tensor} in {span.name}"
            return Check("one block", OK, f"{what} are what they were")
    return Check("one block", OK, "none: there are no weights")


def _file(contents: Contents, command: str) -> Check:
    """Read the last checkpoint's first tensor from the file of others that has it."""
    name = next(iter(contents.architecture.names))
    nbytes = contents.architecture[name].nbytes
    try:
        pieces, offsets = contents.references.places(name)
        contents.referenced_files.read([int(pieces[-1])], [int(offsets[-1])], nbytes, memoryview(bytearray(nbytes)))
    except ZooError as error:
        return Check("one file", PROBLEM, str(error), f"ckptzoo verify {quote(command)} lists all that changed.")
    return Check("one file", OK, f"{size(nbytes)} of {name} in {contents.referenced_files.location(int(pieces[-1]))}")


def _trees(contents: Contents) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """Yield the raw weights, then the variants that can be read, each with the beginnings of its shards' names."""
    yield (layout.RAW,), contents.raw
    for name in contents.variants:
        with suppress(ZooError):  # said where the variant is looked at
            yield (name, layout.ELEMENT), contents.derived(name)
