"""The pictures that a card names: as the page shows them, and as the zoo holds them."""

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.files import Files
from ckptzoo.spec.card import Card
from ckptzoo.spec.picture import MAX_BYTES, is_png
from ckptzoo.spec.readme import plain


def pictures(card: Card) -> str:
    """Every picture with its caption below it; empty where there is none."""
    shown = ((plain(picture.caption), picture.path) for picture in card.pictures)
    return "\n\n".join(f"![{caption}]({path})\n\n*{caption}*" for caption, path in shown)


def read_pictures(files: Files, card: Card) -> tuple[dict[str, bytes], list[Problem]]:
    """The pictures that a zoo holds, by their paths, and what is wrong with the others."""
    sizes = {picture.path: files.size(picture.path) for picture in card.pictures}
    fitting = [path for path, size in sizes.items() if size is not None and 0 < size <= MAX_BYTES]
    read = dict(zip(fitting, files.read_many(fitting, max_bytes=MAX_BYTES), strict=True))
    held = {path: data for path, data in read.items() if is_png(data)}
    step = "Put one there, or leave it out of the card."
    problems: list[Problem] = []
    for path, size in sizes.items():
        if path not in held:
            got = "none" if size is None else "something else" if path in read else f"{size:,} bytes"
            expected = f"a whole PNG of at most {MAX_BYTES:,} bytes"
            problems.append(Problem(f"{files.name}/{path}", "picture", expected, got, step))
    return held, problems


def check_pictures(files: Files, card: Card) -> dict[str, bytes]:
    """The pictures that a zoo holds, by their paths.

    Raises
    ------
    SpecError
        One is missing, too large, or no PNG; every such one is named.
    """
    held, problems = read_pictures(files, card)
    if problems:
        raise SpecError(problems)
    return held
