"""Releases of a zoo: written, listed, and the revision of a name found."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.reader import counts_at, read_contents
from ckptzoo.format.tree import Tree
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Identity, digest_of
from ckptzoo.schema.release import MAX_BYTES, STABLE, Release, decode, encode

MAX_RELEASES = 1_000
"""Releases of a zoo: finding the newest one reads all of them."""


def read_releases(files: Files, identity: Identity) -> tuple[Release, ...]:
    """Every release of a zoo, the newest last; raises ``IntegrityError`` where one is damaged, or that of another zoo.

    ``identity`` is that of the zoo.
    """
    names = layout.release_names(files.listed(layout.RELEASES))
    if len(names) > MAX_RELEASES:
        location, step = f"{files.name}/{layout.RELEASES}", "Remove those that nobody cites."
        raise IntegrityError(Problem(location, "releases", f"at most {MAX_RELEASES:,}", f"{len(names):,}", step))
    documents = files.read_many(list(map(layout.release_file, names)), max_bytes=MAX_BYTES)
    read = [_checked(files, name, data, identity) for name, data in zip(names, documents, strict=True)]
    return tuple(sorted(read, key=lambda release: (release.created, release.name)))


def read_release(files: Files, name: str, identity: Identity) -> Release:
    """A release by its name, or the newest one for ``stable``.

    Raises ``UnknownNameError`` if the zoo has no such release, and ``IntegrityError`` if the document is damaged, or
    that of another zoo or another release.
    """
    known = layout.release_names(files.listed(layout.RELEASES))
    if known and name == STABLE:
        return read_releases(files, identity)[-1]
    if name not in known:
        step = (
            None
            if known
            else f"Make one: ckptzoo release {quote(str(files.here or 'ZOO'))} NAME. zoo.revision is a digest."
        )
        raise UnknownNameError(files.name, "release", name, (*known, STABLE) if known else (), step)
    return _checked(files, name, files.read(layout.release_file(name), max_bytes=MAX_BYTES), identity)


def _checked(files: Files, name: str, data: bytes, identity: Identity) -> Release:
    location = f"{files.name}/{layout.release_file(name)}"
    release = decode(data, location=location)
    for what, expected, got in (
        ("name", name, release.name),
        ("digest of the zoo", digest_of(identity.to_json()), release.zoo),
    ):
        if got != expected:
            step = "It is a release of another zoo, or under another name: fetch the file again."
            raise IntegrityError(Problem(location, what, expected, got[:160], step))
    return release


def next_release(
    known: tuple[Release, ...], name: str, notes: str, *, identity: Identity, revision: str, location: str
) -> tuple[Release, bool]:
    """A release of a zoo as it is now, and whether it is new; one that is there already with the same content is not.

    ``known`` are the zoo's releases, the newest last. Raises ``ZooError`` if the name stands for something else.
    """
    release = Release(name, digest_of(identity.to_json()), revision, datetime.now(UTC), notes)
    for existing in known:
        if existing.name != name:
            continue
        if (existing.revision, existing.notes) == (revision, notes):
            return existing, False
        got = "one of these notes at another revision" if existing.notes == notes else "one with other notes"
        got, step = f"{got}, of {existing.created:%Y-%m-%d}", "Choose another name: a release never changes."
        raise ZooError(Problem(f"{location}/{layout.release_file(name)}", "release", "none of the name", got, step))
    if len(known) >= MAX_RELEASES:
        step = "Remove those that nobody cites."
        raise ZooError(Problem(location, "releases", f"fewer than {MAX_RELEASES:,}", f"{len(known):,}", step))
    if known and release.created <= known[-1].created:
        # the clock of this machine is behind the one that made the last; the order of releases is that of their times
        release = replace(release, created=known[-1].created + timedelta(microseconds=1))
    return release, True


def add_release(path: str | Path, name: str, notes: str = "") -> Release:
    """Name what a zoo's folder holds now; the same name, notes and revision again are no error."""
    files = Folder(path)
    with durable.locked(files.here):
        contents = read_contents(files)
        known = read_releases(files, contents.identity)
        release, is_new = next_release(
            known, name, notes, identity=contents.identity, revision=contents.revision, location=files.name
        )
        if is_new:
            target = files.here / layout.release_file(name)
            target.parent.mkdir(exist_ok=True)
            durable.write_file(target, encode(release))
            durable.sync(files.here)
    return release


def release_problems(files: Files, identity: Identity, raw: Tree, retracted: Tree) -> Iterator[Problem]:
    """Yield the problems of a zoo's releases; ``raw`` and ``retracted`` are its checkpoints and tombstones."""
    for name in layout.release_names(files.listed(layout.RELEASES)):
        try:
            counts_at(files, read_release(files, name, identity).revision, raw, retracted)
        except IntegrityError as error:
            yield from error.problems
        except ZooError as error:
            problem = error.problem
            location = f"{files.name}/{layout.release_file(name)}"
            yield Problem(location, problem.what, problem.expected, problem.got, problem.next_step)
