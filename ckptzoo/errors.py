"""The errors of ckptzoo, and the one form of their messages: ``raise ZooError(Problem(...))``.

::

    ZooError                      anything ckptzoo raises on purpose
    |-- SpecError                 a declaration (architecture, card, symmetry, rows) is not valid; has .problems
    |-- IntegrityError            bytes on disk disagree with what was promised; has .problems
    |-- UnknownNameError          no such tensor, variant, column or checkpoint; has .name, .near (also a KeyError)
    |-- RemoteError               another machine gives no answer, or one that cannot be used; has .problem
    |   |-- AbsentError           it has no such zoo, revision or file
    |   |-- OfflineError          the cache has it not, and the network is not to be used
    |   '-- HubError              a hub refused what was asked
    |-- StateError                a saved stream position does not belong to this stream
    |-- MissingExtraError         an optional dependency is not installed; names the install command
    '-- SymmetryError             a network's symmetries or a gauge cannot be used

Every message reads ``<location>: <what>: expected <X>, got <Y>. <next step>.``
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

__all__ = [
    "AbsentError",
    "HubError",
    "IntegrityError",
    "MissingExtraError",
    "OfflineError",
    "Problem",
    "RemoteError",
    "SpecError",
    "StateError",
    "SymmetryError",
    "UnknownNameError",
    "ZooError",
    "require",
]


MAX_PROBLEMS = 200
"""The maximum number of problems of one error: a hostile file may have millions."""
_MAX_FACT, _MAX_STEP = 1_000, 100_000
"""Characters of a fact, most of which quote untrusted text, and of a next step, which may be a table to be copied."""
_MAX_MESSAGE = 50_000
"""The maximum number of characters of a message behind its first problem."""
_MAX_NEAR_NAME, _MAX_NEAR_NAMES = 256, 10_000
"""Characters of a name, and names, that are compared with a name that is not known: that takes quadratic time."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, as five facts; ``str()`` is the message.

    Facts of more than 1,000 characters are cut, next steps of more than 100,000.

    Parameters
    ----------
    location
        the file, zoo, address or function that it is about.
    what
        which part of it.
    expected
        what should be there.
    got
        what is there.
    next_step
        what to do, as a sentence.
    """

    location: str
    what: str
    expected: str
    got: str
    next_step: str

    def __post_init__(self) -> None:
        for name in ("location", "what", "expected", "got", "next_step"):
            text, limit = getattr(self, name), _MAX_STEP if name == "next_step" else _MAX_FACT
            if len(text) > limit:
                object.__setattr__(self, name, f"{text[: limit - 3]}...")

    def __str__(self) -> str:
        return f"{self.location}: {self.what}: expected {self.expected}, got {self.got}. {self.next_step}"


class ZooError(Exception):
    """Anything ckptzoo raises on purpose.

    Parameters
    ----------
    problem
        what is wrong; several where a validator found several, of which the message lists
        as many as 50,000 characters hold; behind 200 no more are asked for. A plain text is taken as the message.

    Attributes
    ----------
    problems
        the facts of the message; empty where a plain text was given.

    Examples
    --------
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> try:
    ...     zoo["conv1.wieght"]
    ... except ckptzoo.ZooError as error:
    ...     print(error)
    mnist-optunet: tensor 'conv1.wieght': expected one of conv1.weight, conv2.weight, fc.weight, fc.bias, got
    'conv1.wieght'. Did you mean conv1.weight or conv2.weight or fc.weight?
    """

    def __init__(self, problem: "Problem | Iterable[Problem] | str") -> None:
        self.problems: tuple[Problem, ...] = ()
        if not isinstance(problem, str):
            self.problems = (problem,) if isinstance(problem, Problem) else tuple(islice(problem, MAX_PROBLEMS + 1))
        if len(self.problems) > MAX_PROBLEMS:
            got, step = "more", "Correct these, then try again."
            more = Problem(self.problem.location, "problems", f"at most {MAX_PROBLEMS} in a report", got, step)
            self.problems = (*self.problems[:MAX_PROBLEMS], more)
        super().__init__(_message(self.problems) if self.problems else problem)

    @property
    def problem(self) -> Problem:
        """The first of the problems."""
        return self.problems[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems or self.args[0],)


def _message(problems: Sequence[Problem]) -> str:
    """Format one line a problem, the first whole, others as long as there is room."""
    lines: list[str] = []
    for problem in problems:
        line = str(problem)
        if lines and sum(map(len, lines)) + len(line) > _MAX_MESSAGE:
            return "\n".join([*lines, f"... and {len(problems) - len(lines):,} more"])
        lines.append(line)
    return "\n".join(lines)


class SpecError(ZooError):
    """A declaration is not valid; ``problems`` lists everything found."""


class IntegrityError(ZooError):
    """Bytes on disk disagree with what was promised; ``problems`` lists everything found."""


class UnknownNameError(ZooError, KeyError):
    """No such tensor, variant, column or checkpoint; the message lists the near names.

    Parameters
    ----------
    location
        where the name was looked for.
    kind
        what it would name, such as ``tensor``.
    name
        the name.
    known
        the names that there are.
    hint
        the next step, where the name is known for something else; by default the near names.
    """

    def __init__(self, location: str, kind: str, name: str, known: Sequence[str], hint: str | None = None) -> None:
        self.location, self.kind, self.name, self.known, self.hint = location, kind, name, tuple(known), hint
        comparable = [item for item in self.known[:_MAX_NEAR_NAMES] if len(item) <= _MAX_NEAR_NAME]
        is_short = len(name) <= _MAX_NEAR_NAME
        near = difflib.get_close_matches(name, comparable, n=3, cutoff=0.4) if is_short else []
        self.near = tuple(dict.fromkeys(near))
        listed = ", ".join(item[:_MAX_NEAR_NAME] for item in self.known[:12]) + (
            ", ..." if len(self.known) > 12 else ""
        )
        step = hint or (f"Did you mean {' or '.join(self.near)}?" if self.near else "Choose one of these.")
        super().__init__(Problem(location, f"{kind} {name!r}", f"one of {listed or '(none)'}", repr(name), step))

    def __str__(self) -> str:
        return str(self.problem)  # a KeyError would show the text's repr

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.kind, self.name, self.known, self.hint)


def suggestion(name: str, known: Sequence[str], otherwise: str) -> str:
    """``Did you mean X?`` where a name is near to one that is known; otherwise what is given.

    Near is what is spelt alike, the initials of the words, or the beginning of either name.

    >>> suggestion("licence", ["name", "license"], "Leave it out.")
    'Did you mean license?'
    >>> suggestion("lr", ["learning_rate", "batch"], ""), suggestion("batch_size", ["learning_rate", "batch"], "")
    ('Did you mean learning_rate?', 'Did you mean batch?')
    """
    words = name.lower().replace("-", "_")
    for item in known[:_MAX_NEAR_NAMES] if 2 <= len(words) <= _MAX_NEAR_NAME else ():
        initials = "".join(word[:1] for word in item.split("_"))
        if words == initials or (len(words) > 2 and item.startswith(words)) or words.startswith(f"{item}_"):
            return f"Did you mean {item}?"
    comparable = [item for item in known[:_MAX_NEAR_NAMES] if len(item) <= _MAX_NEAR_NAME]
    near = difflib.get_close_matches(name, comparable, n=1, cutoff=0.6) if len(name) <= _MAX_NEAR_NAME else ()
    return f"Did you mean {near[0]}?" if near else otherwise


class RemoteError(ZooError):
    """Another machine gives no answer, or one that cannot be used; ``problem`` holds the facts of the message."""


class AbsentError(RemoteError):
    """There is no such zoo, revision or file."""


class OfflineError(RemoteError):
    """It is not in the cache, and the network is not to be used."""


class HubError(RemoteError):
    """A hub refused what was asked, or cannot be asked."""


class StateError(ZooError):
    """A saved stream position does not belong to this stream."""


class MissingExtraError(ZooError, ImportError):
    """An optional dependency is not installed; the message names the install command.

    Parameters
    ----------
    package
        the package that is not installed.
    extra
        the extra of ckptzoo that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed. Install it with: pip install 'ckptzoo[{extra}]'.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.package, self.extra)


class SymmetryError(ZooError):
    """A network's symmetries or a gauge cannot be used."""


def require(module: str, extra: str, *, package: str | None = None) -> Any:
    """An optional dependency, imported.

    Parameters
    ----------
    module
        what to import: ``"sklearn.cluster"``.
    extra
        of ckptzoo, which installs it: ``"stats"``.
    package
        its name on a package index, where it is not the module's.

    Raises
    ------
    MissingExtraError
        It is not installed. Any other import error is raised as it is.

    Examples
    --------
    >>> require("json", "none").loads("[1]")
    [1]
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        raise MissingExtraError(package or module.partition(".")[0], extra) from error
