"""What a pull did."""

from dataclasses import dataclass
from pathlib import Path

from ckptzoo.spec.document import Document


@dataclass(frozen=True)
class Pulled:
    """What ``pull`` did.

    Parameters
    ----------
    address, revision : what was pulled, and the commit or digest that it was pinned to.
    folder : where it lies.
    checkpoints : how many the folder holds now.
    variants : ``raw``, where the weights as trained are among them, and the gauges.
    parts : the parts that came now, from the zoo's folder.
    there : how many parts were there already.
    fetched : bytes that were fetched, everything that was read at opening left out.
    """

    address: str
    revision: str
    folder: Path
    checkpoints: int
    variants: tuple[str, ...]
    parts: tuple[str, ...]
    there: int
    fetched: int

    def to_json(self) -> Document:
        """The same as JSON."""
        return {
            "address": self.address,
            "revision": self.revision,
            "folder": str(self.folder),
            "checkpoints": self.checkpoints,
            "variants": list(self.variants),
            "parts": list(self.parts),
            "there": self.there,
            "fetched": self.fetched,
        }
