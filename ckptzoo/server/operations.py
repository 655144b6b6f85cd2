"""What a request is for, told from its method and its raw path alone."""

import re

_OPERATIONS = (
    ("blob", "GET|HEAD", r"/_blobs/.*"),
    ("part", "PUT", r"/_uploads/[^/]+/part"),
    ("join", "POST", r"/_uploads/[^/]+/join"),
    ("upload", "PUT", r"/_uploads/[^/]+"),
    ("batch", "POST", r".*\.git/info/lfs/objects/batch"),
    ("verify", "POST", r".*\.git/info/lfs/verify"),
    ("resolve", "GET|HEAD", r"/(?!api/).*/resolve/.*"),
    ("preupload", "POST", r"/api/.*/preupload/.*"),
    ("commit", "POST", r"/api/.*/commit/[^/]+"),
    ("merge", "POST", r"/api/.*/discussions/\d+/merge"),
    ("discussion", "GET|POST", r"/api/.*/discussions(?:/.*)?"),
    ("tree", "GET", r"/api/.*/tree/.*"),
    ("paths", "POST", r"/api/.*/paths-info/.*"),
    ("refs", "GET", r"/api/.*/(?:refs|commits/[^/]+)"),
    ("create", "POST", r"/api/repos/create"),
    ("info", "GET", r"/api/(?:models|datasets|spaces)(?:/.*)?"),
    ("other", ".*", r".*"),
)
_COMPILED = tuple((name, re.compile(methods), re.compile(path)) for name, methods, path in _OPERATIONS)

NAMES = tuple(name for name, _, _ in _OPERATIONS)
"""The operations that faults can be limited to and that the ledger counts."""


def operation_of(method: str, raw_path: str) -> str:
    """The name of the operation that a request is."""
    return next(name for name, methods, path in _COMPILED if methods.fullmatch(method) and path.fullmatch(raw_path))
