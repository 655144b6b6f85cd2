"""Pictures of a zoo's page: which files are suitable, reading them, and their section."""

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.files import Files
from ckptzoo.schema.card import Card
from ckptzoo.schema.readme import plain

MAX_PICTURE_BYTES = 10**6
"""Bytes of one picture; how many a card may name is in ``ckptzoo.schema.card``."""
# The signature with the first chunk's length and type, and the last chunk, which is always the same.
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\0\0\0\0IEND\xaeB`\x82"


def pictures_section(card: Card) -> str:
    """Return every picture with its caption below it, in Markdown; empty where there is none."""
    captions = ((plain(picture.caption), picture.path) for picture in card.pictures)
    return "\n\n".join(f"![{caption}]({path})\n\n*{caption}*" for caption, path in captions)


def read_pictures(files: Files, card: Card) -> tuple[dict[str, bytes], list[Problem]]:
    """Return the pictures that a card names and a zoo holds, by their paths, and what is wrong with the others."""
    sizes = {picture.path: files.size(picture.path) for picture in card.pictures}
    fitting = [path for path, size in sizes.items() if size is not None and 0 < size <= MAX_PICTURE_BYTES]
    read = dict(zip(fitting, files.read_many(fitting, max_bytes=MAX_PICTURE_BYTES), strict=True))
    pictures = {path: data for path, data in read.items() if is_png(data)}
    step = "Put one there, or leave it out of the card."
    problems: list[Problem] = []
    for path, size in sizes.items():
        if path not in pictures:
            got = "none" if size is None else "something else" if path in read else f"{size:,} bytes"
            expected = f"a whole PNG of at most {MAX_PICTURE_BYTES:,} bytes"
            problems.append(Problem(f"{files.name}/{path}", "picture", expected, got, step))
    return pictures, problems


def check_pictures(files: Files, card: Card) -> dict[str, bytes]:
    """Return the pictures that a card names, by their paths.

    Raises ``SpecError`` that names every one that is missing, too large, or no PNG.
    """
    pictures, problems = read_pictures(files, card)
    if problems:
        raise SpecError(problems)
    return pictures


def is_png(data: bytes) -> bool:
    """Whether these are the bytes of a PNG from its first chunk to its last, with nothing behind it."""
    return data.startswith(_PNG_START) and data.endswith(_PNG_END)
