"""Tutorials: pages whose blocks are run one after another, and print what the page shows below them.

``python -m tests.support.tutorials`` runs all of them and writes the outputs again that have changed.
"""

import contextlib
import doctest
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs/tutorials").glob("*.md") if path.name != "index.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_PORT = "8000"
"""That of the server in the pages; another one that is free takes its place while they are run."""


class Block(NamedTuple):
    """A program of a page and its output: in the page, ``...`` stands for what differs each time."""

    kind: str
    program: str
    shown: str
    printed: str

    @property
    def is_right(self) -> bool:
        """Whether the page shows what was printed."""
        return doctest.OutputChecker().check_output(self.shown, self.printed, doctest.ELLIPSIS)


def run(pages: list[Path], home: Path) -> list[list[Block]]:
    """Run pages, each in a folder of its own with the zoos of a clone: one Python process, and a shell for each.

    Raises
    ------
    RuntimeError
        A block failed; the message has what it printed.
    """
    folders = [home / page.stem for page in pages]
    for folder in folders:
        shutil.copytree(ROOT / "cards", folder / "cards")
    port = str(free_port())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "CKPTZOO_"))}
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",  # workers of a test run share the cores
    }
    blocks = [BLOCK.findall(page.read_text()) for page in pages]
    programs = [[(kind, program.replace(_PORT, port)) for kind, program, _ in page] for page in blocks]
    done = subprocess.run(
        # warnings of the package itself, about zoos, are UserWarnings
        [sys.executable, "-W", "error", "-W", "default::UserWarning", __file__, "--run"],
        input=json.dumps([*zip(map(str, folders), programs, strict=True)]),
        cwd=home, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")

    def as_shown(text: str, folder: Path) -> str:
        return re.sub(
            r" +$", "", text.replace(port, _PORT).replace(f"{folder}/", "").replace(f"{home}/", ""), flags=re.MULTILINE
        )

    return [
        [Block(*block, as_shown(text, folder)) for block, text in zip(page, printed, strict=True)]
        for page, printed, folder in zip(blocks, json.loads(done.stdout), folders, strict=True)
    ]


def rewritten(page: str, blocks: list[Block]) -> str:
    """The page with the outputs that its blocks have now, where it shows others."""
    left = iter(blocks)

    def with_output(match: re.Match[str]) -> str:
        block = next(left)
        if block.is_right:
            return match[0]
        output = f"\n```text\n{block.printed}```\n" if block.printed else ""
        return f"```{block.kind}\n{block.program}```\n{output}"

    return BLOCK.sub(with_output, page)


def _outputs(page: Path, programs: list[list[str]]) -> Iterator[str]:
    """Yield what each program prints; names of Python, and variables and jobs of the shell, stay within a page."""
    os.chdir(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as shell,
    ):
        script, output = Path(folder, "script"), Path(folder, "output")
        assert shell.stdin is not None and shell.stdout is not None
        shell.stdin.write("set -euo pipefail; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n")
        for number, (kind, program) in enumerate(programs):
            if kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(program, f"{page.name}, block {number}", "exec"), names)
                yield printed.getvalue()
                continue
            script.write_text(program)
            shell.stdin.write(f"source {script} > {output} < /dev/null; echo done\n")
            if shell.stdout.readline() != "done\n":
                sys.exit(f"{page.name}\n{program}\n{output.read_text()}")
            yield output.read_text()


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        sys.path.insert(0, "")  # as in an interactive session, modules are found in the folder
        json.dump([list(_outputs(Path(folder), programs)) for folder, programs in json.load(sys.stdin)], sys.stdout)
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        found = run(PAGES, Path(folder))
    for page, blocks in zip(PAGES, found, strict=True):
        page.write_text(rewritten(page.read_text(), blocks))
        print(f"{page.relative_to(ROOT)}: {sum(not block.is_right for block in blocks)} outputs written")
