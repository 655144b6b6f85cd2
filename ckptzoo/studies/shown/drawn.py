"""Pictures on their way to a folder. Importing this imports no matplotlib."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptzoo.errors import MissingExtraError
from ckptzoo.format import durable
from ckptzoo.spec.document import canonical

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def need_matplotlib() -> None:
    """Before an import of pictures: refuse to go on without matplotlib.

    Raises
    ------
    MissingExtraError
        It is not installed; the error names the install command.
    """
    try:
        import_module("matplotlib")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError("matplotlib", "plot") from error


def write(folder: str | Path, figures: Mapping[str, "Figure"], name: str, content: dict[str, Any]) -> list[Path]:
    """Write pictures by file name, and a JSON file of this name beside them; returns their paths.

    Parameters
    ----------
    folder : made where it is missing; files of these names are replaced.
    """
    from ckptzoo.studies.shown.style import png

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for file, figure in figures.items():
        durable.write_file(target / file, png(figure))
        made.append(target / file)
    durable.write_file(target / name, canonical(content) + b"\n")
    return [*made, target / name]
