"""Formulas of docstrings as MathML, which browsers draw by themselves: an extension of griffe, named in mkdocs.yml."""

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_INLINE = re.compile(r":math:`([^`]+)`")
_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n+\1 +\S.*)*)", re.MULTILINE)


class Formulas(griffe.Extension):
    """Replaces ``:math:`` and ``.. math::``, as reStructuredText has them, in every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with every object that was loaded."""
        if obj.docstring is not None and "math:" in obj.docstring.value:
            obj.docstring.value = drawn(obj.docstring.value)


def drawn(docstring: str) -> str:
    """A docstring with MathML in place of its formulas."""
    text = _BLOCK.sub(lambda found: found[1] + _mathml(found[2], "block"), docstring)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)


def _mathml(formula: str, display: str) -> str:
    # a bar in a table's cell would end it, and Markdown would take underscores and asterisks for emphasis
    made = convert(" ".join(formula.split()), display=display)
    return made.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")
