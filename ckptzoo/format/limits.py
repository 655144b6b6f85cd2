"""The limits of a zoo's tables: readers refuse what is over one, and writers refuse it before they commit it."""

MAX_FILE = 2**30
"""The maximum number of bytes of a file, or of a piece of one, that is read into memory, and of a tree's indices."""
MAX_DOCUMENT = 64 * 2**20
"""The maximum number of bytes of a sealed document."""
MAX_TABLE = 2**30
"""The maximum number of bytes in memory of a part's table, or of a column of it."""
FREE_ROWS = 2**16
"""The number of rows that any file may have."""
FREE_BYTES, MAX_RATIO = 16 * 2**20, 256
"""A file of n bytes may unpack to 16 MiB + 256 n: rows compress well, but a text of 400 MB in 20 kB is an attack."""
_ROWS_A_BYTE = 8
"""Ids differ, so that no compression stores one in less than a bit."""


def rows_in(nbytes: int) -> int:
    """The maximum number of rows in a part's ``metadata.parquet`` of this size."""
    return FREE_ROWS + _ROWS_A_BYTE * nbytes


def index_rows_in(nbytes: int) -> int:
    """The maximum number of rows in an index of this size: different blocks have different digests, of 32 bytes."""
    return FREE_ROWS + nbytes


def table_in(nbytes: int) -> int:
    """The maximum number of bytes that the pages of a table in a file of this size may unpack to."""
    return min(MAX_TABLE, FREE_BYTES + MAX_RATIO * nbytes)


def indices_in(nbytes: int) -> int:
    """The maximum number of bytes in memory of the indices of a tree whose files have this size together.

    A row has a digest of 32 bytes, which no compression makes shorter, and at most twenty times as much beside it.
    """
    return MAX_TABLE + 32 * nbytes


def columns_in(nbytes: int) -> int:
    """The maximum number of bytes in memory of columns that are asked for at once, of parts with files of this size."""
    return MAX_TABLE + MAX_RATIO * nbytes
