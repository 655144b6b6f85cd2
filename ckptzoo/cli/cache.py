"""``ckptzoo cache``: lists what was fetched of zoos on other machines, and removes it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_cached
from ckptzoo.cli.options import AsJson, console, emit

if TYPE_CHECKING:
    from ckptzoo.remote import CacheEntry

cache = typer.Typer(
    name="cache",
    help="Files that were fetched from zoos on other machines: list them, make room.",
    rich_markup_mode=None,
)


@cache.command()
def ls(as_json: AsJson = False) -> None:
    """List the zoos in the cache, the one used last first.

    The folder is $CKPTZOO_CACHE, else $HF_HOME/ckptzoo, else ~/.cache/ckptzoo; the limit is $CKPTZOO_CACHE_SIZE.
    """
    from ckptzoo.console import columns
    from ckptzoo.remote import cache_limit, cache_root, cached_zoos
    from ckptzoo.text import counted, printable, size

    root, limit = cache_root(), cache_limit()
    zoos = cached_zoos(root)
    total = sum(item.nbytes for item in zoos)
    if as_json:
        listed = [_described(item) for item in zoos]
        emit({"folder": str(root), "nbytes": total, "limit": limit, "zoos": listed})
        return
    if zoos:
        shown = columns("zoo", "size", "last used (UTC)", "revisions")
        for item in zoos:
            facts = _described(item)
            revisions = ", ".join(revision["revision"].removeprefix("sha256:")[:8] for revision in facts["revisions"])
            name = printable(item.address) + (" (not found when last opened; kept)" if item.gone else "")
            used = (facts["used"] or "never")[:16].replace("T", " ")
            shown.add_row(name, size(item.nbytes), used, printable(revisions))
        console().print(shown)
    print(f"{root}: {counted(len(zoos), 'zoo')}, {size(total)} of at most {size(limit)}.")


@cache.command()
def prune(
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="SIZE", help="Remove what was not used for longest, down to this size: 10GB."),
    ] = None,
    zoo: Annotated[
        str | None,
        typer.Option(
            "--zoo", metavar="ADDRESS", help="Remove all that belongs to this zoo.", autocompletion=complete_cached
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove from the cache what can be fetched again."""
    from ckptzoo.remote import Pruned, cache_root, prunable
    from ckptzoo.remote import prune as remove
    from ckptzoo.text import counted, parse_size, size

    if to is None and zoo is None:
        raise typer.BadParameter("expected --to SIZE or --zoo ADDRESS, got neither.")
    root = cache_root()
    max_bytes = None if to is None else parse_size(to, location="--to")
    address = None if zoo is None else _known(root, zoo)
    if dry_run:
        pruned = Pruned.of(prunable(root, address=address, max_bytes=max_bytes))
    else:
        pruned = remove(root, address=address, max_bytes=max_bytes)
    if as_json:
        emit({"folder": str(root), "files": pruned.files, "nbytes": pruned.nbytes, "removed": not dry_run})
        return
    done = "would be removed" if dry_run else "removed"
    print(f"{root}: {counted(pruned.files, 'file')} with {size(pruned.nbytes)} {done}.")


def _known(root: Path, text: str) -> str:
    """Return the address under which the cache has a zoo, from what a person typed."""
    from ckptzoo.errors import UnknownNameError, ZooError
    from ckptzoo.remote import cached_zoos, candidates

    known = [item.address for item in cached_zoos(root)]
    if text in known:
        return text
    try:
        names = {str(place) for place in candidates(text)}
    except ZooError:
        names = set()
    # a hub that is not huggingface.co is named behind " at " (remote.hub_store.hub_address)
    matching = [name for name in known if name in names or name.partition(" at ")[0] in names]
    if len(matching) > 1:
        got = f"got {len(matching)}: {'; '.join(matching)}"
        raise typer.BadParameter(f"{text}: expected one zoo, {got}. Write one in full.")
    if not matching:
        raise UnknownNameError(str(root), "zoo", text, known)
    return matching[0]


def _described(item: "CacheEntry") -> dict[str, Any]:
    used = datetime.fromtimestamp(item.used, UTC).isoformat(timespec="seconds") if item.used else None
    return {
        "zoo": item.address,
        "files": item.files,
        "nbytes": item.nbytes,
        "used": used,
        "gone": item.gone,
        "revisions": [{"revision": revision, "asked": asked} for revision, asked in item.revisions],
    }
