"""Bounds on the requests, data and connections of a client."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds of the server; sizes in bytes, times in seconds."""

    json_bytes: int = 8 * 2**20
    """The size of a body of JSON or of a form that comes with a token."""
    small_json_bytes: int = 2**18
    """The size of a body of JSON or of a form without a token, or one that names paths."""
    json_seconds: float = 300
    """The time within which a body of JSON or of a form arrives."""
    address_bytes: int = 2**28
    """Bodies and answers in memory of the requests from one address."""
    held_bytes: int = 2**30
    """The same for all addresses."""
    costly_requests: int = 8
    """Requests from one address that compute for long, or wait to do so."""
    expand_seconds: float = 2
    """The time for finding the last commits of paths; entries whose commit was not found by then come without."""
    listed_bytes: int = 8 * 2**20
    """Bytes of the list of all files in an answer about a revision: the paths, and 100 bytes for each. A longer list is
    left out, and clients read the pages of the tree."""
    line_bytes: int = 16 * 2**20
    """The size of one line of a commit, with a small file in base64."""
    commit_bytes: int = 512 * 2**20
    """The size of all lines of a commit."""
    commit_files: int = 20_000
    """The number of operations of a commit."""
    contributor_files: int = 1000
    """The number of operations of a commit of a contributor."""
    inline_bytes: int = 2**20
    """The size up to which text files are sent within the commit and served without a redirect."""
    file_bytes: int = 50 * 10**9
    """The size of one file; the clients refuse larger ones over plain HTTP."""
    part_bytes: int = 64 * 2**20
    """The size of the parts in which larger files are uploaded."""
    parts: int = 10_000
    """The number of parts of one upload."""
    batch_files: int = 1000
    """Files of one request about uploads, and paths of one request about paths."""
    batch_parts: int = 1024
    """Parts of all files of one request about uploads; the parts are larger where there would be more."""
    contributor_bytes: int = 100 * 10**9
    """Bytes that a contributor may send in all; accounts that may write have no quota."""
    contributor_discussions: int = 100
    """Open discussions and pull requests of a contributor."""
    discussion_bytes: int = 2 * 2**20
    """Bytes that a contributor may write in one discussion: comments with their versions, and other events."""
    comment_versions: int = 5
    """Versions of a comment that are kept."""
    contributor_uploads: int = 300
    """Uploads in parts of a contributor that are in progress; the oldest ends where another begins."""
    page: int = 1000
    """Entries of a page of a tree, and repositories of a page of a listing."""
    small_page: int = 50
    """Entries of a page with the last commit of each, and commits or discussions of a page."""
    address_seconds: float = 3600
    """The time for which a signed address is valid."""
    head_seconds: float = 20
    """The time within which the head of a request arrives."""
    body_seconds: float = 60
    """A body arrives, and an answer is read, at ``body_rate`` bytes a second or faster in every span of this long."""
    body_rate: float = 200
    connections: int = 256
    """Connections from one address (from one network of 64 bits for IPv6) at once."""
    rates: Mapping[str, str] = field(default_factory=lambda: {"sign-in": "20/minute", "forms": "120/minute"})
    """How often: ``sign-in`` from one address, ``forms`` of one account, and, where it is given, ``requests`` of the
    protocol from one address; in the notation of the package limits."""
    drain_bytes: int = 64 * 2**20
    """Bytes of a refused body that are still read, because clients read the answer after they have sent everything."""
