"""How much a client of the server may ask for, send and hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds of the server; sizes in bytes, times in seconds."""

    json_bytes: int = 8 * 2**20
    """A body of JSON or of a form that comes with a token."""
    small_json_bytes: int = 2**18
    """A body of JSON or of a form without a token, or one that names paths."""
    json_seconds: float = 300
    """A body of JSON or of a form arrives within this long."""
    address_bytes: int = 2**28
    """Bodies and answers in memory of the requests from one address."""
    held_bytes: int = 2**30
    """The same for all addresses."""
    costly_requests: int = 8
    """Requests from one address that compute for long, or wait for their turn to."""
    expand_seconds: float = 2
    """How long the last commits of paths are looked for; entries whose commit was not found by then come without."""
    listed_bytes: int = 8 * 2**20
    """Bytes of the list of all files in an answer about a revision: the paths, and 100 bytes for each. A longer list is
    left out, and clients read the pages of the tree."""
    line_bytes: int = 16 * 2**20
    """One line of a commit, with a small file in base64."""
    commit_bytes: int = 512 * 2**20
    """All lines of a commit."""
    commit_files: int = 20_000
    """Operations of a commit."""
    contributor_files: int = 1000
    """Operations of a commit of a contributor."""
    inline_bytes: int = 2**20
    """Text files up to this size are sent within the commit and served without a redirect."""
    file_bytes: int = 50 * 10**9
    """One file; the clients refuse larger ones over plain HTTP."""
    part_bytes: int = 64 * 2**20
    """Larger files are uploaded in parts of this size."""
    parts: int = 10_000
    """Parts of one upload."""
    batch_files: int = 1000
    """Files of one request about uploads, and paths of one request about paths."""
    batch_parts: int = 1024
    """Parts of all files of one request about uploads; they are larger where there would be more."""
    contributor_bytes: int = 100 * 10**9
    """All that a contributor has sent; those who may write have no quota."""
    contributor_discussions: int = 100
    """Open discussions and pull requests of a contributor."""
    discussion_bytes: int = 2 * 2**20
    """What a contributor writes in one discussion: comments with their versions, and other events."""
    comment_versions: int = 5
    """Versions of a comment that are kept."""
    contributor_uploads: int = 300
    """Uploads in parts of a contributor that are under way; the oldest ends where another begins."""
    page: int = 1000
    """Entries of a page of a tree, and repositories of a page of a listing."""
    small_page: int = 50
    """Entries of a page with the last commit of each, and commits or discussions of a page."""
    address_seconds: float = 3600
    """A signed address is good for this long."""
    head_seconds: float = 20
    """The head of a request arrives within this long."""
    body_seconds: float = 60
    """A body arrives, and an answer is read, at ``body_rate`` bytes a second or faster in every span of this long."""
    body_rate: float = 200
    connections: int = 256
    """Connections from one address (from one network of 64 bits for IPv6) at once."""
    rates: Mapping[str, str] = field(default_factory=lambda: {"sign-in": "20/minute", "forms": "120/minute"})
    """How often: ``sign-in`` from one address, ``forms`` of one account, and, where it is given, ``requests`` of the
    protocol from one address; in the notation of the package limits."""
    drain_bytes: int = 64 * 2**20
    """How much of a refused body is still read, because clients read the answer after they have sent everything."""
