"""Docstrings as the API pages show them: extensions of griffe, named in mkdocs.yml."""

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_INLINE = re.compile(r":math:`([^`]+)`")
_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n+\1 +\S.*)*)", re.MULTILINE)


class Formulas(griffe.Extension):
    """Replaces ``:math:`` and ``.. math::``, as reStructuredText has them, by MathML."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with every object that was loaded."""
        if obj.docstring is not None and "math:" in obj.docstring.value:
            obj.docstring.value = drawn(obj.docstring.value)


class SharedEntries(griffe.Extension):
    """Gives each parameter of an entry ``a, b`` its own type and default; griffe gives all those of the first."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called with a package once all of it was loaded."""
        correct_types(pkg)


def correct_types(found: griffe.Object) -> None:
    """Set the types and defaults of all documented parameters of an object, and of what it defines."""
    for member in found.members.values():
        if isinstance(member, griffe.Object):
            correct_types(member)
    if found.docstring is None or not isinstance(found, griffe.Function | griffe.Class):
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
    return made.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")
