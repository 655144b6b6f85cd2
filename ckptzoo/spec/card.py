"""The card: facts about a zoo that a person wrote, and the README.md made from them."""

import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from ckptzoo.errors import Problem, SpecError
from ckptzoo.spec.architecture import Architecture

_LISTS = {"authors", "tags"}


@dataclass(frozen=True)
class Card:
    """What a person says about a zoo; everything else is read off the zoo itself.

    Parameters
    ----------
    name : the zoo's name, such as ``digits-optunet``.
    summary : one or two plain sentences.
    license : SPDX identifier of the weights' licence.
    dataset : what the members were trained on.
    authors : who made it.
    citation : BibTeX, or empty.
    tags : further tags for the hub's search.
    """

    name: str
    summary: str = ""
    license: str = "apache-2.0"
    dataset: str = ""
    authors: tuple[str, ...] = ()
    citation: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            Problem("card", spec.name, expected, repr(getattr(self, spec.name)), "Correct it in the card.")
            for spec in fields(self)
            if (expected := _misfit(spec.name, getattr(self, spec.name))) is not None
        ]
        if problems:
            raise SpecError(problems)

    @classmethod
    def from_toml(cls, path: str | Path) -> "Card":
        """Read ``card.toml``; unknown keys are refused by name."""
        try:
            content: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SpecError(Problem(str(path), "file", "a card in TOML", str(error), "Correct the card.")) from error
        known = {spec.name for spec in fields(cls)}
        unknown = [key for key in content if key not in known]
        if unknown or "name" not in content:
            raise SpecError(
                Problem(
                    str(path),
                    "keys",
                    "name and any of " + ", ".join(sorted(known)),
                    ", ".join(unknown) or "no name",
                    "Correct it in the card.",
                )
            )
        made: dict[str, Any] = {key: _frozen(value) for key, value in content.items()}
        return cls(**made)

    def readme(self, arch: Architecture) -> str:
        """README.md: front matter that the hub's viewer and ``load_dataset`` understand, then the text."""
        tags = (
            "ckptzoo",
            f"arch:{arch.name}",
            *((f"dataset:{self.dataset}",) if self.dataset else ()),
            *self.tags,
        )
        text = [
            "---",
            f"license: {json.dumps(self.license)}",
            f"pretty_name: {json.dumps(self.name)}",
            f"tags: {json.dumps(list(tags))}",
            "configs:",
            "- config_name: metadata",
            "  data_files: parts/*/metadata.parquet",
            "  default: true",
            "---",
            f"# {self.name}",
            "",
            self.summary or "Checkpoints of one architecture, stored layer-major.",
            "",
            f"Architecture `{arch.name}`: {arch.parameters:,} parameters, {arch.nbytes:,} bytes a checkpoint.",
            *((f"Trained on {self.dataset}.",) if self.dataset else ()),
            *((f"Made by {', '.join(self.authors)}.",) if self.authors else ()),
            "",
            "```python",
            "import ckptzoo",
            'zoo = ckptzoo.open("path/to/this/folder")',
            f'weights = zoo["{arch.names[0]}"]  # every checkpoint\'s, stacked along the first axis',
            "```",
        ]
        if self.citation:
            text += ["", "## Citation", "", "```bibtex", self.citation.strip(), "```"]
        return "\n".join(text) + "\n"


def _misfit(name: str, value: Any) -> str | None:
    """What a field should be when it is not that."""
    if name in _LISTS:
        fits = isinstance(value, tuple) and all(isinstance(item, str) for item in cast(tuple[Any, ...], value))
        return None if fits else "a list of strings"
    if not isinstance(value, str):
        return "a string"
    return "a name" if name == "name" and not value.strip() else None


def _frozen(value: Any) -> Any:
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value
