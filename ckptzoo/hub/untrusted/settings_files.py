"""Parses files of settings beside checkpoints, in JSON or YAML, as data: bounded, and no object is made of a tag."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from ckptzoo.errors import Problem, ZooError

_MAX_VALUES, _MAX_LEVELS = 20_000, 32
"""The most values of a file of YAML, and levels within one another; a reference counts as what it stands for."""
_STEP = "Correct or remove the file."


def parse_json(data: bytes, location: str) -> Any:
    """Parse JSON as Python writes it; raise ``ZooError`` where it is none, or an object has a name twice."""
    try:
        # json.dump writes NaN and Infinity, which are no JSON and stand for no value here
        return json.loads(data, parse_constant=lambda name: None, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise ZooError(Problem(location, "file", "JSON", f"{type(error).__name__}: {error}"[:200], _STEP)) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name {twice[:80]!r} twice in one object")
    return content


def parse_yaml(data: bytes, location: str) -> Any:
    """Parse YAML as people and PyYAML write it, with objects of Python among the values.

    Tags make plain values of their content: an ``OrderedDict`` is a mapping, a tuple a list, any other object what was
    saved of it. ``1e-4``, a text in YAML 1.1, is a number (``1e4`` is none), and dates are texts. Raises ``ZooError``
    where it is no YAML, too large or deep, or a reference is inside what it refers to.

    >>> parse_yaml(b"lr: 1e-4\\nbetas: !!python/tuple [0.9, 0.99]", "hparams.yaml")
    {'lr': 0.0001, 'betas': [0.9, 0.99]}
    """
    try:
        import yaml
    except ImportError:
        step = "pip install pyyaml"
        raise ZooError(Problem(location, "file", "the package pyyaml, which reads YAML", "none", step)) from None

    try:
        text = data.decode()
        _check_size(yaml, text)
        return yaml.load(text, Loader=_loader())
    # PyYAML raises OverflowError for a number such as 1:1:1.0 with many places to base 60, TypeError for keys that
    # cannot be hashed
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        got = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ZooError(Problem(location, "file", "YAML", got, _STEP)) from None


PARSERS: Mapping[str, Callable[[bytes, str], Any]] = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
"""By the suffix of the file, in small letters."""


def _check_size(yaml: Any, text: str) -> None:
    """Refuse more values than the limit; a few lines of references to references stand for billions."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    values = 0
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise ValueError(f"a reference inside what it refers to, *{event.anchor:.100}")
            values += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, values - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if values > _MAX_VALUES or len(opened) > _MAX_LEVELS:
            raise ValueError(f"more than {_MAX_VALUES} values or {_MAX_LEVELS} levels")


@cache
def _loader() -> Any:
    """Return a loader of plain values."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        """As ``SafeLoader``, with the differences that ``parse_yaml`` states."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # YAML 1.1 wants a dot too. Without a sign it may be a text that Python wrote, such as the commit 8470e12.
    number = re.compile(r"[-+]?[0-9]+[eE][-+][0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    Loader.add_multi_constructor("", _plain)
    return Loader


def _plain(loader: Any, tag: str, node: Any) -> Any:
    """Return the content of a node whose tag is of an object."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        items = loader.construct_sequence(node, deep=True)
        if "pathlib." in tag:  # by its parts
            return str(PurePosixPath(*map(str, items)))
        if tag.endswith("OrderedDict"):  # a call with one argument, the list of pairs, or none
            return {str(key): value for pairs in items[:1] for key, value in pairs}
        return items
    # None for python/none and objects without content, whose names say nothing about a network
    return loader.construct_scalar(node) or None
