"""Writes docs/guide/recipes.md behind its marker again: every key of recipes and posterior methods, from the code."""

import dataclasses
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from builders import posterior
from builders.posterior.method import SETTINGS, Method
from builders.recipe import KINDS, UNITS, Recipe

PAGE = Path(__file__).with_name("guide") / "recipes.md"
MARKER = "<!-- Written by `python docs/recipes.py`. -->\n"
LEFT_OUT = frozenset({"full_epochs"})
"""Fields that no file has."""


def meanings(kind: type) -> dict[str, str]:
    """What the docstring of a class and of those that it is derived from says of each parameter, in one line each."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "").partition("Parameters\n----------\n")[2]
        text = re.split(r"\n\n(?=\w+\n-+\n)", text)[0]
        for names, described in re.findall(r"^(\w[\w, ]*)\n((?: {4}.*\n?|\n)+)", text, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(described.split()))
    return found


def described() -> str:
    """A section for the keys of all recipes, for each kind of inputs, and for each posterior method."""
    sections = ["## Every recipe\n", *_recipe_keys(Recipe, ())]
    own = tuple(field.name for field in dataclasses.fields(Recipe))
    for name, kind in KINDS.items():
        about = " ".join((kind.__doc__ or "").split("\n")[0].split())
        left_out = ", or without the key `inputs`" if name == next(iter(KINDS)) else ""
        sections += [f'## `inputs = "{name}"`{left_out}\n', f"{about}\n", *_recipe_keys(kind, own)]
    sections += ["## Posterior methods\n", f"{_SETTINGS_INTRODUCTION}\n"]
    for name in posterior.names():
        sections += [f"### {name}\n", *_settings(name, posterior.get(name))]
    return "\n".join(sections)


_SETTINGS_INTRODUCTION = (
    "`python -m builders posterior METHOD RECIPE --set KEY=VALUE` changes a setting. Numbers are those of the methods' "
    "files in `builders/recipes/posterior/`, which name their sources; an architecture may have a file of its own."
)


def written(page: str) -> str:
    """The page with its part behind the marker written again."""
    return page.partition(MARKER)[0] + MARKER + "\n" + described()


def _recipe_keys(kind: type[Recipe], own: tuple[str, ...]) -> Iterator[str]:
    text = meanings(kind)
    yield "| key | default | unit | |\n|---|---|---|---|"
    for field in dataclasses.fields(kind):
        if field.name in own or field.name in LEFT_OUT:
            continue
        default = "required" if field.default is dataclasses.MISSING else f"`{_toml(field.default)}`"
        yield f"| `{field.name}` | {default} | {UNITS.get(field.name, '')} | {_cell(text[field.name])} |"
    yield ""


def _settings(name: str, method: type[Method]) -> Iterator[str]:
    values, text = tomllib.loads((SETTINGS / f"{name}.toml").read_text(encoding="utf-8")), meanings(method)
    fields = [item for item in dataclasses.fields(method) if item.default is dataclasses.MISSING]
    yield "| key | default | values | |\n|---|---|---|---|"
    for field in fields:
        if field.name != "recipe":
            yield f"| `{field.name}` | `{_toml(values[field.name])}` | {_range(field)} | {_cell(text[field.name])} |"
    yield ""


def _range(field: dataclasses.Field[object]) -> str:
    """The values that a setting may have."""
    least, most = field.metadata.get("least"), field.metadata.get("most", float("inf"))
    if least is None:
        return ""
    kind = "integers" if field.metadata["whole"] else "numbers"
    above = "above" if field.metadata["above"] else "from"
    return f"{kind} {above} {least:g}" + (f" to {most:g}" if most < float("inf") else "")


def _toml(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _cell(text: str) -> str:
    """A docstring's text within a cell of a table."""
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
