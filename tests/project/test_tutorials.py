"""Tutorials print what their pages show."""

import pytest

from tests.support.tutorials import PAGES, Block, rewritten, run


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_tutorial_prints_what_it_shows(page, tmp_path):
    blocks = run(page, tmp_path / "run")
    wrong = [block for block in blocks if not block.is_right]
    assert not wrong, "\n".join(f"{block.program}shows\n{block.shown}prints\n{block.printed}" for block in wrong)
    assert sum(bool(block.shown) for block in blocks) >= 6


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
