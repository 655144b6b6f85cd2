"""A zoo that refers to files, here or on a web server, is read, computed with, shown and published as one that holds
the same weights, or refuses by name."""

import base64
import contextlib
import copy
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo import learning
from ckptzoo.cli.app import run
from ckptzoo.derive import align_zoo, average, dedupe, derive, near_copies, predict, soup
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.explorer import page
from ckptzoo.hub import audit, export
from ckptzoo.hub.card import write as write_card
from ckptzoo.hub.imports import import_zoo, link_zoo
from ckptzoo.hub.imports.adapters import Options
from ckptzoo.studies.marginals import marginals
from ckptzoo.studies.mass import mass
from ckptzoo.studies.steps import steps
from ckptzoo.studies.symmetries import symmetries
from tests.hub.imports.test_remote_links import Listing
from tests.support.effort import ALL, examples
from tests.support.hosted import Hosted, hosted, push
from tests.support.hub_clients import isolate_clients
from tests.support.serving import Served, running

KINDS = ("local", "remote")
INPUTS = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
CLASSES = np.arange(6) % 3


def fill(folder: Path, draw: np.random.Generator, *, diverging: bool) -> dict[str, dict[str, Any]]:
    """Runs of some steps, in files of two forms, some twice with their channels in another order; their facts."""
    facts = dict[str, dict[str, Any]]()
    shapes = {"fc1.weight": (16, 8), "fc1.bias": (16,), "fc2.weight": (3, 16), "fc2.bias": (3,)}
    for run_number in range(int(draw.integers(2, 5))):
        net = {name: draw.standard_normal(shape) for name, shape in shapes.items()}
        for step in range(int(draw.integers(1, 4))):
            net = {name: (array + 0.1 * draw.standard_normal(array.shape)).astype("f4") for name, array in net.items()}
            order = draw.permutation(16) if draw.random() < 0.2 else None
            for copy_number in range(1 if order is None else 2):
                if copy_number:
                    net = {name: net[name][order] if name.startswith("fc1") else net[name] for name in net}
                    net["fc2.weight"] = np.ascontiguousarray(net["fc2.weight"][:, order])
                if diverging and draw.random() < 0.1:
                    net["fc2.bias"] = np.full(3, np.nan, "f4")
                path = folder / f"seed{run_number + 50 * copy_number}" / f"step{100 * step}"
                path.parent.mkdir(parents=True, exist_ok=True)
                if draw.random() < 0.5:
                    save_file(net, path := path.with_suffix(".safetensors"))
                else:
                    torch.save(
                        {name: torch.from_numpy(array) for name, array in net.items()}, path := path.with_suffix(".pt")
                    )
                known = {"test_accuracy": round(float(draw.random()), 3), "seed": run_number}
                facts[str(path.relative_to(folder))] = known if draw.random() < 0.9 else {}
    return facts


def plain(value: Any) -> Any:
    """A value to compare: bits of numbers, and nothing that tells where the weights are or when this was made."""
    match value:
        case np.ndarray() | torch.Tensor():
            array = np.asarray(value)
            return str(array.dtype), array.shape, array.tobytes()
        case pa.Table():
            return plain(value.to_pylist())
        case dict() | Mapping():
            return {
                str(name): own for name, item in value.items() if name not in UNLIKE and (own := plain(item)) != "{}"
            }
        case list() | tuple() | set():
            return [plain(item) for item in value]
        case float():
            return repr(value)
        case str():
            return DROPPED.sub("", UNKNOWN.sub("", value))
        case bytes():
            return plain(value.decode("utf-8", "replace"))
        case _:
            return value


UNLIKE = (
    "revision",
    "nbytes",
    "raw",
    "unit",
    "references",
    "finite",
    "path",
    "address",
    "parts",
    "seconds",
    "files",
    "created",
    "zoo.revision",
    "certifying",
    "repository",
    "columns",
)
"""Names of what differs by what these zoos are; ``finite`` is known of linked files once they have been read."""
UNKNOWN = re.compile(r"\d+ whose weights were not read yet, so that it is not known whether they are finite(, )?")
DROPPED = re.compile(
    r"(sha256:)?[0-9a-f]{64}|\b[0-9a-f]{12,40}\b|(?<=zoo-)[0-9a-f]{8}\b|size \|.*|, follow=True"
    # of files that nobody has read, and of a hub
    r"|\n\| note \|  \|| \(\d+ without an answer\)|<summary>\d+ columns.*"
    r'|,\s*"extra": \{\s*"repository": "[^"]*"\s*\}'
    r'|\n\| `(finite|extra|extra.repository)` .*|,?\s*"finite": true|,?\s*\\?"repository\\?": \\?"[^"]*"'
)


@dataclass
class Asked:
    """A zoo and what is drawn for a question about it, the same for each kind of zoo."""

    path: Path
    seed: int
    hub: Hosted

    @property
    def draw(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @property
    def zoo(self) -> ckptzoo.Zoo:
        return ckptzoo.open(self.path)

    @property
    def chosen(self) -> ckptzoo.Zoo:
        """A selection, by one or two of the ways that there are."""
        zoo, draw = self.zoo, self.draw
        for way in draw.choice(list(WAYS), int(draw.integers(1, 3))):
            zoo = WAYS[way](zoo, draw)
        return zoo


WAYS: dict[str, Callable[[ckptzoo.Zoo, np.random.Generator], ckptzoo.Zoo]] = {
    "all": lambda zoo, draw: zoo,
    "where": lambda zoo, draw: zoo.where(
        str(draw.choice(["step >= 100", "test_accuracy > 0.3", "seed != 1 or step == 0"]))
    ),
    "take": lambda zoo, draw: zoo.take(draw.integers(0, max(1, len(zoo)), 4)) if len(zoo) else zoo,
    "last": lambda zoo, draw: zoo.last_steps(),
    "sorted": lambda zoo, draw: zoo.sorted("step", "id"),
    "slice": lambda zoo, draw: zoo[::-2],
}


def command(*words: object) -> list[Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    text = out.getvalue()
    if code == 2:
        raise ZooError(err.getvalue())
    return [code, json.loads(text) if "--json" in words else text]


def gauge(draw: np.random.Generator) -> Any:
    return str(draw.choice(["canonical", "first-weight"]))


def _derive(asked: Asked) -> Any:
    return plain(vars(derive(asked.path, gauge=gauge(asked.draw))))


def _align(asked: Asked) -> Any:
    return plain(vars(align_zoo(asked.path, asked.zoo.ids[0], certify="none")))


def _predict(asked: Asked) -> Any:
    return plain(vars(predict(asked.path, INPUTS, set="noise/few")))


def _split(asked: Asked) -> Any:
    return make_name(ckptzoo.make_split(asked.path, "halves", {"train": 0.5, "test": 0.5}, seed=asked.seed))


def make_name(value: Any) -> Any:
    return plain(value.to_json())


def _retract(asked: Asked) -> Any:
    ids = asked.zoo.ids
    return ckptzoo.retract(asked.path, [ids[asked.seed % len(ids)]], reason="Trained on the test set.")


def _release(asked: Asked) -> Any:
    from ckptzoo.format.releases import add_release

    return add_release(asked.path, f"r{asked.seed % 1000}").name


def _compact(asked: Asked) -> Any:
    return ckptzoo.compact(asked.path) is not None


def _verify(asked: Asked) -> Any:
    return ckptzoo.verify(asked.path)


CHANGES: dict[str, Callable[[Asked], Any]] = {
    "derive": _derive,
    "align": _align,
    "predict": _predict,
    "split": _split,
    "retract": _retract,
    "release": _release,
    "compact": _compact,
    "verify": _verify,
}


def _rows(asked: Asked) -> Any:
    zoo = asked.chosen
    columns = {name: zoo.column(name).to_pylist() for name in zoo.metadata.column_names if name not in UNLIKE}
    return plain([zoo.ids, columns, zoo.variants, zoo.predicted, zoo.splits, zoo.retracted, zoo.layers, len(zoo)])


def _tensors(asked: Asked) -> Any:
    zoo, draw = asked.chosen, asked.draw
    rows = draw.integers(0, max(1, len(zoo)), 3) if len(zoo) else []
    found = [zoo[name][:] for name in zoo.arch.names] + [zoo["fc1.weight"][rows, 3:7], zoo["fc2.weight"][..., 0]]
    for variant in zoo.variants:
        found += [zoo[name, variant][:] for name in zoo.arch.names] if variant != "raw" else []
    return plain([*found, zoo.predictions("noise/few").logits[:] if zoo.predicted else None])


def _checkpoints(asked: Asked) -> Any:
    zoo, sent = asked.chosen, cast(Any, ForkingPickler)
    copied = sent.loads(sent.dumps(copy.deepcopy(zoo)))
    first = (
        [dict(copied[0].state_dict()), copied[0].metadata if hasattr(copied[0], "metadata") else None]
        if len(zoo)
        else []
    )
    return plain([first, [{name: each[name] for name in each} for each in copied.refresh()]])


def _stream(asked: Asked) -> Any:
    zoo, draw = asked.chosen, asked.draw
    options: dict[str, Any] = {
        "batch_size": int(draw.integers(1, 5)),
        "shuffle": [False, True, "global"][draw.integers(3)],
        "seed": asked.seed,
        "remainder": str(draw.choice(["keep", "drop"])),
        "dtype": [None, "float16", "float64"][draw.integers(3)],
        "columns": [[], ["step", "test_accuracy"]][draw.integers(2)],
        "variant": str(draw.choice(list(zoo.variants))),
    }
    names = [[], ["fc1"], ["fc2.weight", "fc1.bias"]][draw.integers(3)]
    stream = zoo.stream(*names, **options)
    found, state = [], stream.state_dict()
    for at, batch in enumerate(stream):
        found.append([batch.ids, dict(batch.tensors), plain(batch.columns) if hasattr(batch, "columns") else None])
        state = stream.state_dict() if at == 0 else state
    again = ckptzoo.open(asked.path)
    again = zoo.stream(*names, **options) if again.ids == zoo.ids else stream
    again.load_state_dict(state)
    return plain([found, [[batch.ids, dict(batch.tensors)] for batch in again]])


def _batches(asked: Asked) -> Any:
    return plain([[batch.ids, dict(batch.tensors)] for batch in asked.chosen.batches("fc1", max_bytes=2000)])


def _loader(asked: Asked) -> Any:
    dataset = asked.chosen.to_torch("fc1", batch_size=2, columns=["step"])
    loader = DataLoader(dataset, batch_size=None, num_workers=1 if asked.seed % 7 == 0 else 0)
    return plain([{name: batch[name] for name in ("fc1.weight", "fc1.bias", "step")} for batch in loader])


def _learning(asked: Asked) -> Any:
    zoo = asked.chosen
    scaled = learning.statistics(zoo)
    stream = learning.stream(
        zoo,
        form="flat",
        augment=learning.Augment(),
        batch_size=2,
        seed=asked.seed,
        remainder="keep",
        standardize=scaled,
    )
    return plain([[batch.ids, batch.x] for batch in stream])


def _labelled(asked: Asked) -> Any:
    pytest.importorskip("xarray")
    zoo = asked.chosen
    found = zoo.to_xarray("fc1", variant=str(asked.draw.choice(list(zoo.variants))))
    return plain(
        [found["fc1.weight"].values, {name: found[name].values.tolist() for name in found.coords}, found.attrs]
    )


def _info(asked: Asked) -> Any:
    return plain(command("info", asked.path, "--json"))


def _cite(asked: Asked) -> Any:
    return plain(command("cite", asked.path, "--where", "step >= 0"))


def _card(asked: Asked) -> Any:
    write_card(asked.path)
    # croissant.json lists the files of the weights, which this zoo has or has not
    content = json.loads((asked.path / "croissant.json").read_text())
    return plain(
        [
            (asked.path / "README.md").read_text(),
            content["recordSet"][0]["name"],
            content["rai:dataCollectionMissingData"],
        ]
    )


def _page(asked: Asked) -> Any:
    done = page(asked.zoo, asked.path.parent / "page.html")
    text = (asked.path.parent / "page.html").read_text()
    payload = re.search(r'id="payload">([^<]*)', text)
    assert payload is not None
    shown = gzip.decompress(base64.b64decode(payload[1]))
    behind = 4 + int.from_bytes(shown[:4], "little")
    return plain([done.to_json(), text.replace(payload[1], ""), json.loads(shown[4:behind]), shown[behind:]])


def _exported(asked: Asked) -> Any:
    zoo = asked.chosen
    if not len(zoo):
        return None
    to = asked.path.parent / str(asked.draw.choice(["one.safetensors", "one.pt", "folder"]))
    paths = export(zoo[-1] if asked.draw.random() < 0.5 else average(zoo), to, zoo=zoo, force=True)
    return plain([_content(path) for path in paths])


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else path.read_text()


def _averages(asked: Asked) -> Any:
    zoo = asked.chosen
    return plain([average(zoo).checkpoint["fc1.weight"], soup(zoo, Labelled("few", INPUTS, CLASSES)).to_json()])


def _copies(asked: Asked) -> Any:
    zoo = asked.chosen
    return plain([dedupe(zoo).to_json(), outcome_of(lambda: vars(near_copies(zoo)))])


def _studies(asked: Asked) -> Any:
    zoo = asked.chosen
    study = [mass, steps, symmetries, marginals][asked.draw.integers(4)]
    return plain(study(zoo).to_json())


def _show(asked: Asked) -> Any:
    to = asked.path.parent / "shown"
    made = command("show", asked.path, "-o", to, "--json")
    return plain([made, json.loads((to / "summary.json").read_text())])


def _audited(asked: Asked) -> Any:
    found = audit(asked.path)
    return plain([found.runs, found.checkpoints, [str(item) for item in found.findings], len(found.notes)])


def _compared(asked: Asked) -> Any:
    zoo = asked.zoo
    return plain(ckptzoo.studies.mmd(zoo, zoo.last_steps(), permutations=20).to_json())


def _subset(asked: Asked) -> Any:
    """Some layers and checkpoints as a zoo of their own."""
    to = asked.path.parent / "subset/zoo"
    shutil.rmtree(to.parent, ignore_errors=True)
    options: dict[str, Any] = {"layers": "fc1", "where": "step >= 100"}
    if asked.zoo.contents.identity.references:
        ckptzoo.materialize(asked.path, to, **options)
    else:
        ckptzoo.pull(asked.path, to, **options)
    made = ckptzoo.open(to)
    assert ckptzoo.verify(to) == []
    return plain(
        [made.ids, made.variants, [made[name, variant][:] for name in made.arch.names for variant in made.variants]]
    )


def _collected(asked: Asked) -> Any:
    folder = asked.path.parent / "collection"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).symlink_to(asked.path)
    ckptzoo.write_collection(folder)
    opened = ckptzoo.open_collection(folder)
    return plain([[entry.folder, len(opened.zoos[entry.folder])] for entry in opened.entries])


def _published(asked: Asked) -> Any:
    """The zoo as readers of a hub see it; files of this machine, of a server in its network, and of torch.save are refused."""
    name = f"lab/{asked.path.parent.name}"
    options: dict[str, Any] = {"endpoint": asked.hub.url, "token": asked.hub.tokens["write"]}
    try:
        ckptzoo.push(asked.path, name, **options)
    except ZooError as error:
        assert asked.zoo.contents.identity.references and f"ckptzoo materialize {asked.path} --to NEWZOO" in str(
            error
        ), error
        return REFUSED
    ckptzoo.pull(name, pulled := asked.path.parent / "pulled", **options)
    there = [ckptzoo.open(place, follow=True, **options) for place in (f"hf://datasets/{name}", pulled)]
    try:
        return plain([[zoo.ids, zoo.variants, zoo["fc1.weight"][:]] for zoo in there])
    except ZooError as error:
        assert "expected safetensors, in a zoo of others, got torch" in str(error), error
        return REFUSED


REFUSED = "refused by name"
QUESTIONS: dict[str, Callable[[Asked], Any]] = {
    "rows": _rows,
    "tensors": _tensors,
    "checkpoints": _checkpoints,
    "stream": _stream,
    "batches": _batches,
    "loader": _loader,
    "learning": _learning,
    "labelled": _labelled,
    "info": _info,
    "cite": _cite,
    "card": _card,
    "page": _page,
    "exported": _exported,
    "averages": _averages,
    "copies": _copies,
    "studies": _studies,
    "show": _show,
    "audited": _audited,
    "compared": _compared,
    "subset": _subset,
    "collected": _collected,
    "published": _published,
}


@contextlib.contextmanager
def zoos(root: Path, draw: np.random.Generator, hub: Hosted) -> Iterator[dict[str, Path]]:
    """The same files as a zoo that holds them, one that refers to them here, and one to a web server or a hub."""
    # of files that nobody has read it is not known whether they are finite
    diverging = bool(draw.integers(2))
    facts = fill(root / "nets", draw, diverging=diverging)
    options: dict[str, Any] = {"license": "MIT", "arch": "mlp-8-16-3", "options": Options(metadata=facts)}
    paths = [path for path in (root / "nets").rglob("*") if path.is_file()]
    files = {str(path.relative_to(root / "nets")): path.read_bytes() for path in paths}
    with running(Served({f"/nets/{name}": data for name, data in files.items()}), Listing) as served:
        link_zoo(root / "nets", root / "local/zoo", **options)
        import_zoo(root / "nets", root / "held/zoo", **options)
        if draw.integers(2):
            link_zoo(f"{served.url}/nets/", root / "remote/zoo", **options)
        else:
            hub.api().create_repo("lab/nets", exist_ok=True)
            push(hub, files, "models/lab/nets")
            link_zoo("hf://lab/nets", root / "remote/zoo", endpoint=hub.url, **options)
        made = {kind: root / kind / "zoo" for kind in ("held", *KINDS)}
        if diverging:
            assert [ckptzoo.verify(path) for path in made.values()] == [[]] * 3
        yield made


def outcome(question: Callable[[Asked], Any], asked: Asked) -> Any:
    return outcome_of(lambda: question(asked), str(asked.path.parent))


def outcome_of(answer: Callable[[], Any], root: str = "ROOT") -> Any:
    """The answer to a question, or the words of its refusal."""
    try:
        return answer()
    except (ZooError, IndexError) as error:
        return plain(f"{type(error).__name__}: {error}").replace(root, "ROOT")


@settings(max_examples=examples(60, 1), deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.timeout(3600)  # sixty zoos in full
@pytest.mark.filterwarnings("ignore:.*")
def test_a_zoo_that_refers_to_files_is_as_one_that_holds_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    root, draw = tmp_path_factory.mktemp("referring"), np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patched, hosted(root / "hub") as hub:
        isolate_clients(root, patched)
        with zoos(root, draw, hub) as paths:
            done = list[str]()
            # drawing takes two seconds
            asked = [name for name in QUESTIONS if ALL or name != "show"]
            for _ in range(12 if ALL else 4):
                which = str(draw.choice([*CHANGES, *asked, *asked]))
                question, own = {**CHANGES, **QUESTIONS}[which], int(draw.integers(2**32))
                done.append(which)
                found = {kind: outcome(question, Asked(path, own, hub)) for kind, path in paths.items()}
                for kind in KINDS:
                    assert found[kind] in (found["held"], REFUSED), (done, own, kind)
    shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore:mmd")
def test_what_is_not_known_of_files_that_nobody_has_read_is_said(tmp_path: Path) -> None:
    """Conditions on ``finite`` are refused, studies read the weights, and the card says it."""
    fill(tmp_path / "nets", np.random.default_rng(3), diverging=True)
    made = [tmp_path / "local/zoo", tmp_path / "held/zoo"]
    for bring, path in zip((link_zoo, import_zoo), made, strict=True):
        bring(tmp_path / "nets", path, license="MIT", arch="mlp-8-16-3")
    zoo, held = map(ckptzoo.open, made)
    good = held.where("finite").ids
    assert 0 < len(good) < len(held)
    for condition in ("finite", "finite == True", {"finite": True}, "step == 0 and finite", [("finite", "!=", False)]):
        with pytest.raises(ZooError, match=r"column 'finite': .*none for 11 of 11.*ckptzoo verify \S+local/zoo"):
            zoo.where(condition)
    assert zoo.where("finite is None or finite").ids == zoo.ids and zoo.where("finite is not None").ids == []
    for study in (mass, steps):
        assert plain(study(zoo).to_json()) == plain(study(held).to_json())
    one, other = (plain(ckptzoo.studies.mmd(each, each, permutations=20).to_json()) for each in (zoo, held))
    assert one == other
    write_card(made[0])
    assert "11 whose weights were not read yet" in (made[0] / "README.md").read_text()
    assert ckptzoo.verify(made[0]) == [] and zoo.refresh().where("finite").ids == good


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*")
def test_ray_reads_what_a_zoo_that_refers_to_files_holds(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    fill(tmp_path / "nets", np.random.default_rng(3), diverging=False)
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    try:
        found = list[Any]()
        for bring, name in ((link_zoo, "local/zoo"), (import_zoo, "held/zoo")):
            bring(tmp_path / "nets", tmp_path / name, license="MIT", arch="mlp-8-16-3")
            source = ckptzoo.ray_datasource(ckptzoo.open(tmp_path / name), "fc1")
            rows = ray.data.read_datasource(source).sort("id").take_all()
            found.append(plain(rows))
        assert found[0] == found[1]
    finally:
        ray.shutdown()
