"""Who may do what: one decision for every address of the protocol and for every page. Knows no HTTP and no database.

An account has a role in namespaces (its own, those of its organisations, those that it was granted) and in single
repositories, and the highest of them counts. A token lowers it: to what the token may do at most, and to where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

READ, CONTRIBUTE, WRITE, ADMIN = ROLES = ("read", "contribute", "write", "admin")
"""Each includes those before it. Read; open and answer pull requests and discussions; commit, merge, and in a
namespace make repositories; remove, rename and hide repositories, close them to others, and say who else may."""
TOKEN_ROLES = (READ, CONTRIBUTE, WRITE)
"""The highest role that a token may give; with ``write`` all that its owner may do."""


@dataclass(frozen=True)
class TokenLimits:
    """The limits of a token within its owner's rights.

    ``role`` is one of ``TOKEN_ROLES``. ``scope`` is a namespace or a repository, ``lab`` or ``lab/zoo``, outside of
    which the token reads what is public; empty for everywhere.
    """

    role: str
    scope: str = ""

    def covers(self, name: str) -> bool:
        """Return whether a namespace or a repository is within the scope."""
        return self.scope in ("", name, name.partition("/")[0])


@dataclass(frozen=True)
class Subject:
    """The account that sends a request, with its rights.

    ``namespaces`` has its role in each namespace in which it has one, ``admin`` in its own; ``repositories`` its role
    in each repository for which it has a grant, by the repository's number. ``token`` is that of the request; None
    where the account itself asks.
    """

    user: str
    namespaces: Mapping[str, str] = field(default_factory=dict)
    repositories: Mapping[int, str] = field(default_factory=dict)
    token: TokenLimits | None = None


@dataclass(frozen=True)
class AccessTarget:
    """The object of a request: a repository, or a namespace in which one is to be made.

    ``name`` is ``lab/zoo``, or ``lab`` for the namespace, whose ``number`` is None. Only accounts with a role may know
    of a ``private`` repository, or open pull requests and discussions in a ``closed`` one.
    """

    name: str
    number: int | None = None
    private: bool = True
    closed: bool = True


def role_in(subject: Subject | None, target: AccessTarget) -> str | None:
    """Return the highest role of a subject (None without an account) in a repository or a namespace; None if the
    subject may not know of it.

    >>> zoo, ada = AccessTarget("lab/zoo", 1, private=False, closed=False), Subject("ada", {"ada": "admin"})
    >>> hidden, own = AccessTarget("lab/other", 2), AccessTarget("ada")
    >>> role_in(None, zoo), role_in(ada, zoo), role_in(ada, hidden), role_in(ada, own)
    ('read', 'contribute', None, 'admin')
    """
    public = [] if target.private else [READ]
    if subject is None or (subject.token is not None and not subject.token.covers(target.name)):
        return _highest(public)
    if not target.private and not target.closed:
        public.append(CONTRIBUTE)
    granted = [subject.namespaces.get(target.name.partition("/")[0])]
    if target.number is not None:
        granted.append(subject.repositories.get(target.number))
    highest = _highest([*public, *(role for role in granted if role is not None)])
    if highest is None or subject.token is None or subject.token.role == WRITE:
        return highest
    return min(highest, subject.token.role, key=ROLES.index)


def may(subject: Subject | None, action: str, target: AccessTarget) -> bool:
    """Return whether a subject (None without an account) has the role ``action``, one of ``ROLES``."""
    role = role_in(subject, target)
    return role is not None and ROLES.index(role) >= ROLES.index(action)


def _highest(roles: list[str]) -> str | None:
    return max(roles, key=ROLES.index, default=None)
