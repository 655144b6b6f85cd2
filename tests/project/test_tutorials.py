"""Tutorials print what their pages show."""

import pytest

from tests.support.effort import ALL
from tests.support.tutorials import PAGES, Block, rewritten, run


@pytest.mark.timeout(900)  # of the full run
def test_tutorials_print_what_they_show(tmp_path):
    """The first one, and the others, which train and start many programs, where all tests are asked for."""
    pages = [page for page in PAGES if ALL or page.stem == "open_and_stream"]
    for page, blocks in zip(pages, run(pages, tmp_path), strict=True):
        wrong = [block for block in blocks if not block.is_right]
        shown = "\n".join(f"{block.program}shows\n{block.shown}prints\n{block.printed}" for block in wrong)
        assert not wrong, f"{page.name}\n{shown}"
        assert sum(bool(block.shown) for block in blocks) >= 5, page.name


def test_wrong_outputs_are_written_again():
    page = """Text.

```python
print(2)
```

```text
1
```

```sh
date
```

```text
Today ...
```

```python
x = 1
```
"""
    blocks = [
        Block("python", "print(2)\n", "1\n", "2\n"),
        Block("sh", "date\n", "Today ...\n", "Today is Monday\n"),
        Block("python", "x = 1\n", "", ""),
    ]
    assert [block.is_right for block in blocks] == [False, True, True]
    assert rewritten(page, blocks) == page.replace("```text\n1\n```", "```text\n2\n```")
