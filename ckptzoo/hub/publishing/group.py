"""What one commit adds and removes."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """What one commit adds and removes.

    Parameters
    ----------
    files : paths in the zoo, to the file or the bytes.
    sha256 : of every file that is given as a path.
    parts : the parts that it adds.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: dict[str, bytes], delete: tuple[str, ...] = ()) -> "Group":
        """Files that were made here."""
        return cls(dict(files), {name: len(data) for name, data in files.items()}, delete=delete)

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(self.sizes.values())

    @property
    def title(self) -> str:
        """The commit's title, where nobody says another."""
        first, others = next(iter(self.parts), None), len(self.parts) - 1
        if first is None:
            return f"Write {', '.join(self.files)}"[:200]
        return f"Add {first}" + (f" and {others} more" if others else "")

    def joined(self, other: "Group") -> "Group":
        """Both in one."""
        return Group(
            self.files | other.files,
            self.sizes | other.sizes,
            self.sha256 | other.sha256,
            self.parts + other.parts,
            self.delete + other.delete,
        )
