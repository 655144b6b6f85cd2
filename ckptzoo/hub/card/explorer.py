"""The explorer of a zoo's page: whether there is one, whether it can be published, and its section."""

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.files import Files
from ckptzoo.schema import layout
from ckptzoo.schema.explorer import MAX_PAGE_BYTES, is_released


def explorer_section(files: Files) -> str:
    """Return a link to the explorer, in Markdown; empty where the zoo has none."""
    if files.size(layout.EXPLORER) is None:
        return ""
    return (
        f"[{layout.EXPLORER}]({layout.EXPLORER}) shows every member in a browser, without a network: linked "
        "histograms, the weights' principal components and marginals, training, a table, and code that selects what is "
        "selected there. It is one file: download it and open it, or look at it where a hub shows it."
    )


def check_explorer(files: Files) -> tuple[str, ...]:
    """Return the path of the explorer, where the zoo has one; raise ``SpecError`` where it is too large to publish."""
    size = files.size(layout.EXPLORER)
    if size is None:
        return ()
    if size > MAX_PAGE_BYTES:
        step = "Make it again with ckptzoo page ZOO --in-place and fewer --layers or --max-rows, or remove it."
        expected = f"at most {MAX_PAGE_BYTES:,} bytes"
        raise SpecError(Problem(f"{files.name}/{layout.EXPLORER}", "page", expected, f"{size:,} bytes", step))
    return (layout.EXPLORER,)


def read_explorer(files: Files) -> tuple[dict[str, bytes], list[Problem]]:
    """Return the explorer that a zoo of others holds, by its path, and why it cannot be used.

    A page is a program: it is taken only where nothing but a released bundle runs in it.
    """
    size = files.size(layout.EXPLORER)
    if size is None:
        return {}, []
    fits = 0 < size <= MAX_PAGE_BYTES
    data = files.read(layout.EXPLORER, max_bytes=MAX_PAGE_BYTES) if fits else b""
    if is_released(data):
        return {layout.EXPLORER: data}, []
    got = "another script, or that of a newer release" if fits else f"{size:,} bytes"
    expected = f"at most {MAX_PAGE_BYTES:,} bytes in which only a released script of ckptzoo runs"
    step = "Make one here with ckptzoo page ZOO --in-place."
    return {}, [Problem(f"{files.name}/{layout.EXPLORER}", "page", expected, got, step)]
