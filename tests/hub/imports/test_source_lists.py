"""Several sources as one: patterns over branches and tags, lists of repositories, several arguments."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import import_zoo, plan_import
from ckptzoo.hub.imports.source_lists import open_sources
from ckptzoo.hub.untrusted.runs import run_of
from tests.support.container_files import tar_file, zip_file
from tests.support.effort import examples
from tests.support.hosted import Hosted, push
from tests.support.serving import RangeHandler, Served, running


def network(number: int) -> dict[str, np.ndarray]:
    return {"weight": np.full((4, 8), number, "f4"), "bias": np.arange(4, dtype="f4")}


def published(server: Hosted, name: str, branches: list[str]) -> None:
    api = server.api("write")
    api.create_repo(f"lab/{name}")
    for number, branch in enumerate(branches):
        api.create_branch(f"lab/{name}", branch=branch)
        push(server, {"model.safetensors": save(network(number))}, f"models/lab/{name}", revision=branch)


def paths(server: Hosted, *addresses: str | Path) -> list[str]:
    return [file.path for file in open_sources(addresses, endpoint=server.url).files()]


@pytest.mark.slow
def test_patterns_over_branches_and_tags(tmp_path: Path, server: Hosted) -> None:
    published(server, "pythia-a", ["step2", "step10", "step1", "other"])
    published(server, "pythia-b", ["step1", "step-3"])
    server.api("write").create_tag("lab/pythia-b", tag="step-1", revision="step1")
    steps = ["step1", "step2", "step10"]
    assert paths(server, "hf://lab/pythia-a@step*") == [f"{step}/model.safetensors" for step in steps]
    (tmp_path / "runs.txt").write_text("hf://lab/pythia-a@step[12]*  # some\n\nhf://lab/pythia-b@step-3\n")
    expected = [*(f"pythia-a/{step}/model.safetensors" for step in steps), "pythia-b/step-3/model.safetensors"]
    assert paths(server, tmp_path / "runs.txt") == expected
    for added, present in ((4, 0), (0, 4)):
        done = import_zoo(tmp_path / "runs.txt", tmp_path / "zoo", license="mit", endpoint=server.url)
        assert (done.added, done.present) == (added, present)
    zoo = ckptzoo.open(tmp_path / "zoo")
    rows = [(row["member"], row["step"]) for row in zoo.sorted("member", "step").metadata.to_pylist()]
    assert rows == [("pythia-a", 1), ("pythia-a", 2), ("pythia-a", 10), ("pythia-b", 3)]
    assert zoo.column("extra.repository").to_pylist()[0] == f"hf://lab/pythia-a@step1 at {server.url}"
    for address, problem in {
        "hf://lab/pythia-b@step*": "revisions of step 1: expected one, got step1 and step-1. Narrow",
        "hf://lab/pythia-a@epoch*": "pattern: expected one that fits a branch or a tag, got none among 5: main, other",
        "hf://lab/pythia-*": "expected a pattern over branches and tags alone, got one over names. List the repositories",
        "hf://lab/none@*": "repository: expected one that is there and may be read",
    }.items():
        with pytest.raises(ZooError) as error:
            paths(server, address)
        assert problem in str(error.value)
    with pytest.raises(ZooError, match="revisions: expected one, got main and main"):
        paths(server, "hf://lab/pythia-a", "hf://lab/pythia-a")


@pytest.mark.slow
def test_a_branch_and_a_tag_of_one_name(server: Hosted) -> None:
    published(server, "twice", ["step1", "step2"])
    api = server.api("write")
    api.create_tag("lab/twice", tag="step1", revision="step1")
    assert len(paths(server, "hf://lab/twice@step*")) == 2  # both are one commit
    api.create_tag("lab/twice", tag="step2", revision="step1")
    with pytest.raises(ZooError, match="expected one commit for each name, got a branch and a tag 'step2'"):
        paths(server, "hf://lab/twice@step*")


class Gated(RangeHandler):
    """A hub whose repository may be read after its owner agreed."""

    def answer(self, path: str) -> None:
        self.plain(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")


def test_gated_repositories(tmp_path: Path) -> None:
    (tmp_path / "runs.txt").write_text("hf://lab/gated@step*\n")
    with running(Served({}), Gated) as served:
        for source in ("hf://lab/gated@step*", "hf://lab/gated", tmp_path / "runs.txt"):
            with pytest.raises(ZooError) as error:
                open_sources(source, endpoint=served.url)
            assert str(error.value) == (
                "hf://lab/gated: access: expected permission to read it, got Access is restricted. "
                "It is gated: ask for access on its page, then log in with hf auth login."
            )


def test_several_folders_and_files(tmp_path: Path) -> None:
    for run in ("x/run1/ckpts", "x/run2/ckpts"):
        for step in (1, 2):
            (tmp_path / run).mkdir(parents=True, exist_ok=True)
            save_file(network(step), tmp_path / run / f"ckpt_{step}.safetensors")
    folders = [tmp_path / "x" / run / "ckpts" for run in ("run1", "run2")]
    plan = plan_import(folders)
    whole = plan_import(tmp_path / "x")
    assert [(item.id, item.member, item.step) for item in plan.files] == [
        (item.id, item.member, item.step) for item in whole.files
    ]
    files = plan_import(sorted(folders[0].iterdir()))
    assert [(item.member, item.step) for item in files.files] == [("ckpts", 1), ("ckpts", 2)]
    (tmp_path / "list.txt").write_text("# runs\nx/run1\nx/run2/ckpts\n")
    assert len(plan_import(tmp_path / "list.txt").files) == 4
    for sources, problem in (
        ([tmp_path / "x", folders[0]], "none inside another"),
        ([tmp_path / "x", tmp_path / "nothing"], "expected a folder or a file, got nothing"),
        ([folders[0], folders[0]], "none inside another"),
    ):
        with pytest.raises(ZooError, match=problem):
            plan_import(sources)
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(ZooError, match="expected at least one address, got none"):
        plan_import(tmp_path / "empty.txt")
    (tmp_path / "nested.txt").write_text("list.txt\n")
    with pytest.raises(ZooError, match="expected addresses, got the list"):
        plan_import(tmp_path / "nested.txt")


KINDS = {
    "file": ("safetensors", save),
    "zip": ("zip", lambda state: zip_file({"net.safetensors": save(state)})),
    "tar": ("tgz", lambda state: tar_file({"net.safetensors": save(state)}, "w:gz")),
    "broken zip": ("pt", lambda state: b"PK\x03\x04 cut"),
    "cut zip": ("zip", lambda state: zip_file({"net.safetensors": save(state)})[:-30]),
    "cut tar": ("tgz", lambda state: tar_file({"a.bin": bytes(9), "b": np.random.default_rng(0).bytes(9000)}, "w:gz")[:-900]),
    "a text": ("pt", lambda state: b"<html>"),
}  # fmt: skip


@settings(max_examples=examples(40, 12), deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=5), place=st.integers(0, 4))
def test_damaged_sources_among_several_are_skipped_as_in_a_folder(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], place: int
) -> None:
    kinds.insert(place, "file")
    root = tmp_path_factory.mktemp("sources")
    (root / "nets").mkdir()
    files = [root / "nets" / f"run{number}.{KINDS[kind][0]}" for number, kind in enumerate(kinds)]
    for number, (path, kind) in enumerate(zip(files, kinds, strict=True)):
        path.write_bytes(KINDS[kind][1](network(number)))
    several, folder = (
        import_zoo(source, root / name, adapter="files", license="MIT", skip_bad=True)
        for name, source in (("several", files), ("folder", root / "nets"))
    )
    good = sum(kind in ("file", "zip", "tar") for kind in kinds)
    assert several.added == folder.added == good and (several.passed_over, folder.passed_over) == ((), ())
    assert ckptzoo.open(root / "several").ids == ckptzoo.open(root / "folder").ids
    for done in (several, folder):
        stems = {item["file"].partition("/")[0].partition(".")[0] for item in done.skipped}
        assert stems == {f"run{at}" for at, kind in enumerate(kinds) if kind not in ("file", "zip", "tar")}
    if good < len(kinds):
        with pytest.raises(ZooError, match=r"run\d[./]"):
            import_zoo(files, root / "refused", adapter="files", license="MIT")


def test_names_of_revisions_that_count_tokens() -> None:
    assert run_of("stage1-step150-tokens1B/model.safetensors").member == "stage1"
    assert run_of("step1000-tokens4B/model.safetensors").member == ""
