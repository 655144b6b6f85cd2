"""How much a client may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the server; sizes in bytes, times in seconds."""

    json_bytes: int = 8 * 2**20
    """A body of JSON or of a form."""
    line_bytes: int = 16 * 2**20
    """One line of a commit, with a small file in base64."""
    commit_bytes: int = 512 * 2**20
    """All lines of a commit."""
    commit_files: int = 20_000
    """Operations of a commit."""
    inline_bytes: int = 2**20
    """Text files up to here are sent within the commit and served without a redirect."""
    file_bytes: int = 50 * 10**9
    """One file; the clients refuse larger ones over plain HTTP."""
    part_bytes: int = 64 * 2**20
    """Files above are uploaded in parts of this size."""
    parts: int = 10_000
    """Parts of one upload."""
    batch_files: int = 1000
    """Files of one question about uploads, and paths of one question about paths."""
    page: int = 1000
    """Entries of a page of a tree, and repositories of a page of a listing."""
    small_page: int = 50
    """Entries of a page with the last commit of each, and commits or discussions of a page."""
    address_seconds: float = 3600
    """A signed address is good for this long."""
    drain_bytes: int = 64 * 2**20
    """How much of a refused body is still read, so that the client gets to read the answer."""
