"""Pictures on their way to a folder. Importing this imports no matplotlib.

How a set of figures is spread, in six numbers.

Facts and tables of figures, as all studies print them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ckptzoo.errors import MissingExtraError
from ckptzoo.format import durable
from ckptzoo.schema.documents import canonical

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
    from ckptzoo.studies.shared.plots import png

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for file, figure in figures.items():
        durable.write_file(target / file, png(figure))
        made.append(target / file)
    durable.write_file(target / name, canonical(content) + b"\n")
    return [*made, target / name]


@dataclass(frozen=True)
class Spread:
    """Count, mean, standard deviation and three order statistics of some figures.

    Parameters
    ----------
    sd : of the sample, with the divisor n - 1; 0 for a single figure.
    """

    count: int
    mean: float
    sd: float
    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: ArrayLike) -> "Spread | None":
        """Of the finite ones among these; None where there are none."""
        found = np.asarray(values, np.float64)
        found = found[np.isfinite(found)]
        if not len(found):
            return None
        sd = float(found.std(ddof=1)) if len(found) > 1 else 0.0
        middle = float(np.median(found))
        return cls(len(found), float(found.mean()), sd, float(found.min()), middle, float(found.max()))

    def to_json(self) -> dict[str, Any]:
        """The six numbers by name."""
        return asdict(self)
