"""Docstrings as the API pages show them: an extension of griffe, named in mkdocs.yml."""

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_INLINE = re.compile(r":math:`([^`]+)`")
_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n+\1 +\S.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Draws formulas, and gives each parameter of an entry ``a, b`` its own type.

    Formulas, ``:math:`` and ``.. math::`` as reStructuredText has them, become MathML. Griffe gives all parameters of
    an entry the type and default of the first.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called with a package once all of it was loaded."""
        correct(pkg)


def correct(found: griffe.Object) -> None:
    """Correct the docstrings of an object and of what it defines."""
    for member in found.members.values():
        if isinstance(member, griffe.Object):
            correct(member)
    if found.docstring is None:
        return
    if "math:" in found.docstring.value:
        found.docstring.value = drawn(found.docstring.value)
        # what an earlier reader of it has parsed
        found.docstring.__dict__.pop("parsed", None)
    if not isinstance(found, griffe.Function | griffe.Class):
        return
    own = {item.name: item for item in found.parameters}
    for section in found.docstring.parsed:
        if section.kind is griffe.DocstringSectionKind.parameters:
            for entry in section.value:
                if entry.name in own:
                    entry.annotation, entry.value = own[entry.name].annotation, own[entry.name].default


def drawn(docstring: str) -> str:
    """A docstring with MathML in place of its formulas."""
    text = _BLOCK.sub(lambda found: found[1] + _mathml(found[2], "block"), docstring)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)


def _mathml(formula: str, display: str) -> str:
    # a bar in a table's cell would end it, and Markdown would take underscores and asterisks for emphasis
    made = convert(" ".join(formula.split()), display=display)
    # what the converter does not know it leaves as text: commands, and columns outside of an environment
    if unknown := re.search(r"\\\w*|<mi>&</mi>", made):
        raise ValueError(f"formula {formula!r}: expected what latex2mathml knows, got {unknown[0]}")
    return made.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")
