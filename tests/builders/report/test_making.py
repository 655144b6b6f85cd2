"""The report of small zoos: the same bytes twice, other zoos other figures, and reasons for what cannot be made."""

import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ckptzoo
from builders.__main__ import run
from builders.report.making import _Inputs, report  # pyright: ignore[reportPrivateUsage]
from builders.report.parts import PARTS
from ckptzoo.errors import UnknownNameError, ZooError
from tests.cli.test_predict import idx
from tests.support.chromium import chromium, sideways, violations

CARDS = Path(__file__).parents[3] / "cards"
QUIET = Console(quiet=True)


def pulled(name: str, folder: Path, where: str, to: str | None = None) -> Path:
    ckptzoo.pull(CARDS / name, folder / (to or name), where=where)
    return folder


def rows(page: Path) -> list[str]:
    """Return the texts of the column of our figures."""
    return [unescape(text) for text in re.findall(r'<td data-name="here">(.*?)</td>', page.read_text(), re.DOTALL)]


def test_the_same_zoo_gives_the_same_bytes_and_another_zoo_other_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoos = pulled("mnist-optunet", tmp_path / "zoos", "seed < 24")
    out = tmp_path / "out"
    command = ["report", "--zoos", str(zoos), "--to", str(out), "--only", "2310.08287-figure-2"]
    assert run(command) == 0
    first = (out / "2310.08287-figure-2.html").read_bytes()
    assert "figure-2: made" in capsys.readouterr().out
    assert run(command) == 0
    assert "figure-2: kept" in capsys.readouterr().out
    assert (out / "2310.08287-figure-2.html").read_bytes() == first
    # results are kept under the digest of what they were made from; one that is damaged is made again
    (kept,) = (out / "results").iterdir()
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])
    page = report([zoos], out, only=["2310.08287-figure-2"], console=QUIET)
    assert page.read_bytes() == first and len(list((out / "results").iterdir())) == 1
    shutil.rmtree(zoos)
    pulled("mnist-optunet", zoos, "seed >= 24 and seed < 50")
    again = report([zoos], out, only=["2310.08287-figure-2"], console=QUIET)
    assert len(list((out / "results").iterdir())) == 2
    before = [unescape(text) for text in re.findall(r'<td data-name="here">(.*?)</td>', first.decode(), re.DOTALL)]
    assert len(before) == 3 and all(old != new for old, new in zip(before, rows(again), strict=True))


def test_zoos_of_several_widths_come_in_the_order_of_widths(tmp_path: Path) -> None:
    names = ["mlp-128", "mlp-16", "mlp-256", "mlp-32", "mlp-64", "mlp-x"]
    zoos = tmp_path / "zoos"
    for name in names:
        with ckptzoo.create(zoos / name, arch="mlp-4-2-2", card=ckptzoo.Card(name)):
            pass
    found = _Inputs([zoos], tmp_path / "data", tmp_path / "work").every("mlp-*")
    assert [zoo.name for zoo in found] == ["mlp-16", "mlp-32", "mlp-64", "mlp-128", "mlp-256", "mlp-x"]


def test_what_cannot_be_made_has_its_reason(tmp_path: Path) -> None:
    zoos = tmp_path / "zoos"
    pulled("mnist-optunet", zoos, "seed < 3")
    # a folder that is no zoo, and a zoo without draws under the name of one with them
    (zoos / "toy").mkdir()
    pulled("mnist-optunet", zoos, "seed < 2", "mnist-optunet-posteriors")
    pulled("mnist-optunet", zoos, "seed < 2", "mnist-optunet-trajectories")
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    chosen = ["table-1", "2310.08287-figure-1", "figure-4-left", "figure-7", "figure-9", "2310.10171", "2401.00611"]
    text = unescape(report([zoos], out, data=tmp_path / "data", only=chosen, console=QUIET).read_text())
    for said in (
        "mnist/test",
        "one named toy",
        "builders build toy",
        "kept steps: expected a member with two or more",
        "one named energy-mlp",
        "one named mlp-*",
        "one named planted",
        "no zoo of variational ResNet-20s",
    ):
        assert said in text
    assert "0 reproduced" in text and not (out / "zoos").exists() and not list(out.glob("results/*"))
    assert "(a mistake" not in text


def test_another_set_stands_in_for_one_that_is_missing(tmp_path: Path) -> None:
    """Fashion-MNIST for SVHN, where it is there and SVHN is not; what was done stands in the commands."""
    zoos, data = tmp_path / "zoos", tmp_path / "data"
    pulled("cifar100-resnet18-w8", zoos, "seed < 2 and step == 2346")
    data.mkdir()

    def commands() -> str:
        page = report([zoos], tmp_path / "out", data=data, only=["2310.08287-figure-3"], console=QUIET)
        text = unescape(page.read_text())
        assert "set of inputs 'cifar100/test'" in text
        return text.partition("<pre>")[2].partition("</pre>")[0]

    assert "cifar100/test svhn/test" in commands() and "--ood svhn/test" in commands()
    idx(data / "fashion-mnist", np.zeros((40, 28, 28), np.uint8), np.arange(40) % 10)
    said = commands()
    assert "svhn" not in said and said.count("fashion-mnist-3x32x32/test") == 2
    np.savez(data / "svhn_test.npz", images=np.zeros((26_032, 32, 32, 3), np.uint8), labels=np.arange(26_032) % 10)
    assert "--ood svhn/test" in commands()


def test_unknown_parts_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="figure-4-left"):
        report([tmp_path], tmp_path / "out", only=["figure-44"], console=QUIET)
    with pytest.raises(ZooError, match="a folder that holds zoos"):
        report([tmp_path / "none"], tmp_path / "out", console=QUIET)
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_a_whole_report_of_small_zoos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoos, data, out = tmp_path / "zoos", tmp_path / "data", tmp_path / "out"
    pulled("mnist-optunet", zoos, "seed < 240")
    pulled("mnist-optunet-posteriors", zoos, "method in ['swag', 'laplace'] and draw < 3")
    pulled("mnist-optunet-trajectories", zoos, "seed < 2")
    pulled("cifar100-resnet18-w8", zoos, "seed < 2")
    pulled("mnist-optunet", zoos, "seed < 4", "mlp-like")
    assert run(["build", "toy", "--members", "64", "--to", str(zoos / "toy")]) == 0
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion-mnist"):
        idx(data / name, rng.integers(0, 256, (40, 28, 28), np.uint8), np.arange(40) % 10)
    images = rng.integers(0, 256, (10_000, 32, 32, 3), np.uint8)
    np.savez(data / "cifar100_test.npz", images=images, labels=np.arange(10_000) % 100)
    command = ["report", "--zoos", str(zoos), "--data", str(data), "--to", str(out)]
    capsys.readouterr()
    assert run(command) == 0
    said = capsys.readouterr().out
    made = {line.split()[3].rstrip(":").partition("-")[2] for line in said.splitlines() if ": made" in line}
    expected = {"table-1-mnist", "figure-1", "figure-2", "figure-3", "figure-4-left", "figure-4-right", "figure-7"}
    expected |= {"barriers-mlp"}
    assert made == expected, said
    page = out / "report.html"
    first = page.read_bytes()
    assert run(command) == 0
    assert said.count(": made") and ": made" not in capsys.readouterr().out and page.read_bytes() == first
    # from nothing, in another folder
    assert report([zoos], tmp_path / "other", data=data, console=QUIET).read_bytes() == first
    assert len(rows(page)) == sum(len(part.claims) for part in PARTS)
    with chromium() as browser:
        for width in (1200, 390):
            shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
            shown.route("http*://**", lambda route: pytest.fail(route.request.url))
            shown.goto(page.as_uri())
            assert sideways(shown) == 0 and violations(shown) == []
        assert len(shown.pdf(prefer_css_page_size=True)) > 10_000
