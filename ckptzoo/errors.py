"""What can go wrong, and the one form of its message: ``raise ZooError(Problem(...))``.

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


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, as five facts; ``str()`` is the message.

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

    def __str__(self) -> str:
        return f"{self.location}: {self.what}: expected {self.expected}, got {self.got}. {self.next_step}"


class ZooError(Exception):
    """Anything ckptzoo raises on purpose.

    Parameters
    ----------
    problem
        what is wrong; several where a validator found several, and the message lists every one. A plain text is taken
        as the message.

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
            self.problems = (problem,) if isinstance(problem, Problem) else tuple(problem)
        super().__init__("\n".join(map(str, self.problems)) if self.problems else problem)

    @property
    def problem(self) -> Problem:
        """The first of the problems."""
        return self.problems[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems or self.args[0],)


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
        self.near = tuple(difflib.get_close_matches(name, self.known, n=3, cutoff=0.4))
        listed = ", ".join(self.known[:12]) + (", ..." if len(self.known) > 12 else "")
        step = hint or (f"Did you mean {' or '.join(self.near)}?" if self.near else "Choose one of these.")
        super().__init__(Problem(location, f"{kind} {name!r}", f"one of {listed or '(none)'}", repr(name), step))

    def __str__(self) -> str:
        return str(self.problem)  # a KeyError would show the text's repr

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.kind, self.name, self.known, self.hint)


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
