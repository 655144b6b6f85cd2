"""Chooses the format of a source by its paths."""

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters import ADAPTERS, Adapter
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.schema import layout
from ckptzoo.text import excerpt

AUTO = "auto"


def chosen_adapter(source: OpenedSource, name: str) -> Adapter:
    """Return the adapter of a name; ``auto`` is the one that all checkpoint files of the source fit, else ``files``.

    Raises ``ZooError`` where the name is unknown, the source is a zoo, or several adapters fit it.
    """
    if name != AUTO:
        if name not in ADAPTERS:
            step = "Name one of these."
            raise ZooError(Problem("--as", "format", ", ".join([AUTO, *ADAPTERS]), repr(name), step))
        return ADAPTERS[name]
    paths = source.first_paths()
    if zoo := next((path for path in paths if path.rpartition("/")[2] == layout.ZOO), None):
        step = "Open it as it is, or copy it with ckptzoo pull; ckptzoo export writes its checkpoints to files."
        raise ZooError(Problem(source.address, "source", "checkpoints of others", f"a zoo: {excerpt(zoo, 80)!r}", step))
    # files of any program have the suffixes that the other formats have too
    special = [adapter for adapter in ADAPTERS.values() if adapter.name != "files" and adapter.recognises(paths)]
    if len(special) > 1:
        got = " and ".join(adapter.name for adapter in special)
        raise ZooError(Problem(source.address, "format", "one", got, "Say which with --as."))
    return special[0] if special else ADAPTERS["files"]
