"""What can go wrong, and how it is said.

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


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, as five facts; ``str()`` is the message."""

    location: str
    what: str
    expected: str
    got: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.location}: {self.what}: expected {self.expected}, got {self.got}. {self.next_step}"


class ZooError(Exception):
    """Anything ckptzoo raises on purpose."""


class _ProblemsError(ZooError):
    """An error made of one or more problems; the message lists every one."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type, tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class SpecError(_ProblemsError):
    """A declaration is not valid; ``problems`` lists everything found."""


class IntegrityError(_ProblemsError):
    """Bytes on disk disagree with what was promised; ``problems`` lists everything found."""


class UnknownNameError(ZooError, KeyError):
    """No such tensor, variant, column or checkpoint; the message lists the near names."""

    def __init__(self, location: str, kind: str, name: str, known: Sequence[str]) -> None:
        self.location, self.kind, self.name, self.known = location, kind, name, tuple(known)
        self.near = tuple(difflib.get_close_matches(name, self.known, n=3, cutoff=0.4))
        super().__init__(location, kind, name, self.known)

    def __str__(self) -> str:
        shown = ", ".join(self.known[:12]) + (", ..." if len(self.known) > 12 else "")
        hint = f"Did you mean {' or '.join(self.near)}?" if self.near else "Choose one of these."
        expected = f"one of {shown or '(none)'}"
        return f"{self.location}: {self.kind} {self.name!r}: expected {expected}, got {self.name!r}. {hint}"


class RemoteError(ZooError):
    """Another machine gives no answer, or one that cannot be used; ``problem`` holds the facts of the message."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return str(self.problem)


class AbsentError(RemoteError):
    """There is no such zoo, revision or file."""


class OfflineError(RemoteError):
    """It is not in the cache, and the network is not to be used."""


class HubError(RemoteError):
    """A hub refused what was asked, or cannot be asked."""


class StateError(ZooError):
    """A saved stream position does not belong to this stream."""


class MissingExtraError(ZooError, ImportError):
    """An optional dependency is not installed; the message names the install command."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(package, extra)

    def __str__(self) -> str:
        return f"{self.package} is not installed. Install it with: pip install 'ckptzoo[{self.extra}]'."


class SymmetryError(ZooError):
    """A network's symmetries or a gauge cannot be used."""
