"""The page of a collection: a line for each zoo, in which nothing that zoos or folders are called acts."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import SpecError
from ckptzoo.hub.card import write
from ckptzoo.schema.card import Card
from tests.support.derived_zoos import weights_of
from tests.support.effort import examples

ARCH = archs.architecture("mlp-4-5-3")
PIECES = ["plain", "a|b", "`", "``", "<script>alert(1)</script>", "](javascript:alert(1))", "javascript:x", "[a](b)",
          "*", "_x_", "%41", "ü", "\\n", "---", "#", "&lt;", "{{x}}", '"', "'"]  # fmt: skip


def add(path: Path, ids: list[str], **row: object) -> None:
    with ckptzoo.create(path, arch=ARCH) as writer:
        if ids:
            writer.add(weights_of(len(ids), len(ids), arch=ARCH), [{"id": name, **row} for name in ids])


@pytest.mark.parametrize("seed", range(examples(40, 3)))
def test_hostile_names_are_text(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(np.random.SeedSequence((5, seed)))
    root = tmp_path / "both"

    def text(*, folder: bool = False) -> str:
        joined = "".join(rng.choice(PIECES, int(rng.integers(1, 4))).tolist())
        return joined.replace("/", "").replace("\\", "") or "x" if folder else joined

    folders = {text(folder=True) for _ in range(int(rng.integers(1, 4)))}
    for at, folder in enumerate(sorted(folders)):
        ids = [f"m{row}" for row in range(int(rng.integers(0, 3)))]
        add(root / folder, ids, dataset=text(), license=text(), contributor=text(), test_accuracy=0.5)
        if rng.random() < 0.5:
            (root / folder / "card.toml").write_text(Card(folder, license=text()).to_toml() if at else "not = a card")
    ckptzoo.write_collection(root)
    card = Card("both", title=text(), license=str(rng.choice(["", "mit"]))) if rng.random() < 0.5 else None
    made = write(root, card).text
    head, _, body = made.removeprefix("---\n").partition("\n---\n")
    front = yaml.safe_load(head)
    assert front["ckptzoo"]["zoos"] == len(folders) and "ckptzoo" in front["tags"]
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    assert "<script" not in html and html.count("<a ") == len(folders)
    for link in html.split('href="')[1:]:
        assert link.startswith("./") and link.partition('"')[0].endswith("/README.md")
    assert html.count("<tr>") >= len(folders) + 1 and write(root, card).changes == ()


def test_what_the_zoos_hold(tmp_path: Path) -> None:
    root = tmp_path / "both"
    add(root / "one", ["a", "b"], license="mit", dataset="mnist", test_accuracy=0.75)
    add(root / "two", ["a"])
    add(root / "none", [])
    ckptzoo.write_collection(root)
    text = write(root).text
    one, two = (ckptzoo.open(root / name).revision[:19] for name in ("one", "two"))
    line = "43 parameters | 2 | 2 | `mnist` | test accuracy 75.00 % | `mit`"
    assert f"| [`one`](./one/README.md) | `mlp-4-5-3`, {line} | `{one}` |" in text
    assert f"none stated | `{two}` |" in text and "None is stated for `none`, `two`" in text
    assert "**3 checkpoints**" in text and 'pretty_name: "both"' in text and '- "dataset:mnist"' in text
    text = write(root, Card("both", title="Both", license="cc-by-4.0", repository="lab/both")).text
    assert "`none`, `two`, where none is stated: `cc-by-4.0`." in text and 'open_collection("lab/both")' in text
    assert (root / "card.toml").is_file() and "# Both" in (root / "README.md").read_text()
    # the page is that of the collection: zoos that have grown since are told of
    with ckptzoo.append(root / "two") as writer:
        writer.add(weights_of(1, 9, arch=ARCH), [{"id": "late"}])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert write(root, check=True).changes == ()
    assert "has changed since" in str(told[0].message)
    (root / "card.toml").write_text('name = "both"\nlicence = "mit"\n')
    with pytest.raises(SpecError, match="license"):
        write(root)
