"""The difference between a collection and its repository: each zoo as in its own push, table, document, page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from ckptzoo.errors import HubError, IntegrityError, Problem, SpecError
from ckptzoo.format.files import DEREFERENCE, Folder, leads_outside
from ckptzoo.format.reader import list_trees, read_contents, read_trees, zoo_folders
from ckptzoo.hub.card.collection import card_or_default, collection_readme, licences_of
from ckptzoo.hub.card.pictures import check_pictures
from ckptzoo.hub.client.models import RepoFile, RevisionListing
from ckptzoo.hub.client.stored_files import LocalFile, is_stored
from ckptzoo.hub.push.page import NO_LICENCE, ReadmePage
from ckptzoo.hub.push.plan import ALLOWED_BEFORE, CommitBatch, PushPlan, batch_of, not_stored, pack, plan_push
from ckptzoo.hub.push.sources import LocalZoo, OverlayFiles, RepositoryFiles, hashed, links_outside, read_local
from ckptzoo.loader.collection import collection_files, verify_collection
from ckptzoo.loader.selection import standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, CARDS, Card
from ckptzoo.schema.readme import COLLECTION_MARK
from ckptzoo.text import counted, shortened

_OWN = (layout.COLLECTION, layout.COLLECTION_ROWS, *CARDS, "listing.json")
"""Files of a collection that are in none of its zoos; ``hf upload`` publishes the last one too."""
_SHOWN = 3
"""Zoos that a note names."""
_MAX_NAMES = 200


@dataclass(frozen=True)
class LocalCollection:
    """A collection's folder: its zoos by their folders, and its card with pictures and page."""

    zoos: Mapping[str, LocalZoo]
    card_files: Mapping[str, LocalFile]


NOTHING = LocalCollection({}, {})
"""Makes table and page of what a repository holds already."""


def read_collection(root: Path) -> LocalCollection:
    """Read what is to be published of a folder, verified but for the weights.

    Raises ``IntegrityError`` where a zoo is damaged, the collection is older than its zoos, or a link leads out of the
    folder; ``SpecError`` where a card is not valid, or a picture that it names is missing.
    """
    if not (root / layout.COLLECTION).is_file():
        got = "no such file" if root.exists() else "no such folder"
        step = f"Write one with ckptzoo collection {quote(str(root))}; ckptzoo push publishes a single zoo."
        raise IntegrityError(Problem(f"{root}/{layout.COLLECTION}", "file", "a collection", got, step))
    outside = [
        Problem(str(path), "folder", "one in the collection's folder", f"a link to {target}", DEREFERENCE)
        for path in (root / name for name in zoo_folders(root))
        if (target := leads_outside(path, root)) is not None
    ]
    if outside:
        raise IntegrityError(outside)
    # listed before they are verified, so that nothing is published that was not verified
    listed = {name: list_trees(Folder(root / name)) for name in zoo_folders(root)}
    if problems := verify_collection(root, deep=False):
        raise IntegrityError(problems)
    trees = {name: read_trees(Folder(root / name), named=named) for name, named in listed.items()}
    zoos = {name: read_local(root / name, found) for name, found in trees.items()}
    files = Folder(root)
    pictures = check_pictures(files, card_or_default(files, root.name))
    card_files = {name: hashed(root / name) for name in (*CARDS, *pictures) if (root / name).is_file()}
    own = LocalZoo(root, {}, card_files, ())
    if problems := [problem for local in (*zoos.values(), own) for problem in links_outside(local)]:
        raise IntegrityError(problems)
    return LocalCollection(zoos, card_files)


def plan_collection(
    local: LocalCollection, repository: RepositoryFiles, listing: RevisionListing | None, *, snapshot: bool
) -> PushPlan:
    """Compare a collection with a commit of its repository, or with none.

    Zoos of the repository that are not in the folder stay, and are in the table. Raises ``HubError`` where the
    repository holds something else, or one of its zoos is another or has parts that clash.
    """
    there = listing or RevisionListing("", {})
    _check_is_collection(repository, there)
    folders = _folders(there)
    plans = {
        name: plan_push(
            zoo,
            repository.within(name),
            None if listing is None else replace(there, files=folders.get(name, {})),
            snapshot=snapshot,
        )
        for name, zoo in local.zoos.items()
    }
    files = {name: plan.files for name, plan in plans.items() if plan.files is not None}
    last, page = collection_batch(local, repository, there, files=files)
    batches = [batch.within(name) for name, plan in plans.items() for batch in plan.batches]
    return PushPlan(
        None if listing is None else listing.commit,
        pack([*batches, last]),
        sum(plan.already for plan in plans.values()),
        (
            *_joined((note, name) for name, plan in plans.items() for note in plan.notes if note != NO_LICENCE),
            *page.notes,
        ),
    )


def collection_batch(
    local: LocalCollection,
    repository: RepositoryFiles,
    listing: RevisionListing,
    card: Card | None = None,
    *,
    files: Mapping[str, OverlayFiles] | None = None,
) -> tuple[CommitBatch, ReadmePage]:
    """Return table, document, card, pictures and page of what the repository then holds.

    ``card`` replaces the one that is kept; ``files`` are those of the zoos in the folder, as the repository then holds
    them.
    """
    files_by_zoo = {
        name: OverlayFiles(repository.within(name), replace(listing, files=stored), {})
        for name, stored in _folders(listing).items()
        if layout.ZOO in stored
    }
    zoos, left_out = _opened({**files_by_zoo, **(files or {})}, local.zoos)
    if not zoos:
        step = "Push a collection with a zoo that can be read."
        raise HubError(Problem(repository.name, "zoos", "one or more", "; ".join(left_out) or "none", step))
    stored, card_files = listing.files, dict(local.card_files)
    overlay = OverlayFiles(repository, listing, {name: file.path for name, file in card_files.items()})
    page = _page(overlay, zoos, repository, card)
    generated = collection_files(zoos)
    if card is not None:
        generated[CARD_TOML] = card.to_toml().encode()
    if page.data is not None:
        card_files.pop(layout.README, None)
        generated[layout.README] = page.data
    batch = batch_of(not_stored(card_files, stored))
    own = {name: data for name, data in generated.items() if not is_stored(data, stored.get(name))}
    return batch.merge(CommitBatch.of(own)), replace(page, notes=(*left_out, *page.notes))


def _opened(files: Mapping[str, OverlayFiles], local: Mapping[str, LocalZoo]) -> tuple[dict[str, Zoo], tuple[str, ...]]:
    """Return the zoos in order, and why some that others put into the repository cannot be in the table."""
    zoos: dict[str, Zoo] = {}
    notes: list[str] = []
    for name in sorted(files):
        try:
            if not layout.is_folder_name(name):
                raise IntegrityError(
                    Problem(repr(name), "name of a zoo's folder", "printable", "another", "Rename it.")
                )
            contents = read_contents(files[name])
            zoos[name] = Zoo(contents, {}, standing(contents))
        except (IntegrityError, SpecError) as error:
            if name in local:
                raise
            notes.append(f"a zoo of the repository is not in the table: {error.problem}")
    return zoos, tuple(notes)


def _page(files: OverlayFiles, zoos: Mapping[str, Zoo], repository: RepositoryFiles, card: Card | None) -> ReadmePage:
    """Return README.md, unless a person wrote it: without a card, an existing one that was not made here stays."""
    if card is None and files.size(CARD_TOML) is None and files.size(layout.README) is not None:
        (readme,) = files.read_many([layout.README])
        if COLLECTION_MARK.encode() not in readme:
            return ReadmePage(
                None, (f"README.md stays as it is, because somebody wrote it; {CARD_TOML} adds to a made one.",)
            )
    used = card or card_or_default(files, repository.repo.partition("/")[2])
    check_pictures(files, used)
    without = [name for name, zoo in zoos.items() if not licences_of(zoo)] if not used.license.strip() else []
    notes = (f"{_names(without)}: {NO_LICENCE}",) if without else ()
    return ReadmePage(collection_readme(zoos, replace(used, repository=repository.repo)).encode(), notes)


def _check_is_collection(repository: RepositoryFiles, listing: RevisionListing) -> None:
    """Refuse a repository of a zoo, and one that holds something else."""
    names = listing.files
    if layout.ZOO in names:
        step = "Choose another repository: it holds one zoo, and ckptzoo push publishes a zoo there."
        raise HubError(Problem(repository.name, "repository", "a collection, or an empty one", "a zoo", step))
    if layout.COLLECTION in names:
        return
    # a push that was interrupted has left zoos
    zoos = {name.partition("/")[0] for name in names if name.endswith(f"/{layout.ZOO}") and name.count("/") == 1}
    own = {*ALLOWED_BEFORE, *_OWN}
    others = [name for name in names if name not in own and name.partition("/")[0] not in {*zoos, layout.PICTURES}]
    if others:
        got = f"{counted(len(others), 'file')}, such as {others[0]}"
        step = "Choose another repository."
        raise HubError(Problem(repository.name, "repository", "a collection, or an empty one", got, step))


def _folders(listing: RevisionListing) -> dict[str, dict[str, RepoFile]]:
    """Return the files of each folder of a repository, by their paths in it."""
    folders: dict[str, dict[str, RepoFile]] = {}
    for path, file in listing.files.items():
        folder, slash, name = path.partition("/")
        if slash:
            folders.setdefault(folder, {})[name] = file
    return folders


def _joined(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each note once, with the zoos that it is about."""
    zoos: dict[str, list[str]] = {}
    for note, name in notes:
        zoos.setdefault(note, []).append(name)
    return tuple(f"{_names(names)}: {note}" for note, names in zoos.items())


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return shortened(", ".join(names[:_SHOWN]), _MAX_NAMES) + more
