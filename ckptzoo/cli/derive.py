"""The commands that compute something of every checkpoint: variants, predictions, curvature, copies."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_gauges
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import (
    AsJson,
    Data,
    InputShape,
    LabelledFile,
    Module,
    Share,
    Where,
    ZooAddress,
    ZooFolder,
    bar,
    console,
    emit,
    folder,
    opened,
    parse_input_shape,
    print_result,
)
from ckptzoo.cli.ray_shares import On, work_on_ray

_MAX_EXAMPLES = 1_000
"""The number of images on which the loss around checkpoints is measured where no set is named."""
_MAX_PAIRS, _MAX_NAMED = 100, 8
"""The maximum of groups and of pairs that dedupe prints, and of ids in a line."""

if TYPE_CHECKING:
    import numpy as np

    from ckptzoo.derive import Derived
    from ckptzoo.derive.duplicates import Duplicates
    from ckptzoo.loader.zoo import Zoo

Store = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="weights, or element: store the group elements alone; weights are then computed when they are read. "
        "Tables with matrices need weights.",
    ),
]
Certify = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="all: every checkpoint, in float64 up to 4 MiB, else in float32 with 8 of each part in float64; "
        "sample: those 8 alone; none; auto: all up to 4 MiB a checkpoint, else sample.",
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|SET",
        help="Real inputs for the check of outputs (align: and for activations): a .npy file, or a .npz file with one "
        "array or inputs among several, (B, *input_shape); or a data set, scaled as the rows say: mnist/train-5000.",
    ),
]


def derive(
    context: typer.Context,
    zoo: ZooFolder,
    gauge: Annotated[
        str, typer.Option(metavar="NAME", help="The gauge to bring them into.", autocompletion=complete_gauges)
    ] = "canonical",
    store: Store = "weights",
    certify: Certify = "auto",
    inputs: Inputs = None,
    data: Data = None,
    module: Module = None,
    input_shape: InputShape = None,
    share: Share = "0/1",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Bring every checkpoint into a gauge.

    Stores the variant beside the raw weights, and checks on sampled inputs that both compute the same outputs. A call
    that was killed is continued by the next from the last part it finished. A zoo without a table of symmetries gets
    the one that is traced from --module.
    """
    from ckptzoo.derive import derive as derive_variant
    from ckptzoo.symmetry import gauge_named
    from ckptzoo.text import parse_share

    root = folder(zoo)
    if on is not None:
        work_on_ray(context, on)
    given = None if inputs is None else _inputs(root, inputs, data)
    network, shape = _network(root, module), parse_input_shape(input_shape)
    with bar(f"deriving {gauge}") as progress:
        derived = derive_variant(
            root,
            gauge=gauge_named(gauge, "derive"),
            store=store,
            certify=certify,
            inputs=given,
            module=network,
            input_shape=shape,
            share=parse_share(share),
            progress=progress,
        )
    _report(zoo, derived, certify, _names(inputs=given, network=network), as_json=as_json)


def align(
    context: typer.Context,
    zoo: ZooFolder,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="REFERENCE",
            help="best: the most accurate checkpoint; barycentre: the mean of all members, aligned with one another; "
            "an id; or a folder or address of a zoo of one checkpoint.",
        ),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variant is aligned-NAME.  [default: best or barycentre]")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="weights: channels with close weights come together; activations: those that answer alike on the "
            "first 5,000 of --inputs.",
        ),
    ] = "weights",
    gauge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Bring all into this gauge before.", autocompletion=complete_gauges),
    ] = None,
    scales: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="fixed: as they are or as the gauge has them; fit: those of least distance, which raises barriers.",
        ),
    ] = "fixed",
    barycentre_zoo: Annotated[
        Path | None,
        typer.Option("--barycentre", metavar="FOLDER", help="Where the barycentre is kept.  [default: ZOO-<label>]"),
    ] = None,
    store: Store = "weights",
    certify: Certify = "auto",
    inputs: Inputs = None,
    data: Data = None,
    module: Module = None,
    input_shape: InputShape = None,
    share: Share = "0/1",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Permute every checkpoint so that it is close to one reference.

    Stores the variant aligned-<label> beside the raw weights, as derive does. Checkpoints that come later are aligned
    by the same command; another reference needs another label.
    """
    from ckptzoo.derive import align_zoo
    from ckptzoo.derive.aligned import BARYCENTRE, keep_barycentre
    from ckptzoo.symmetry import gauge_named
    from ckptzoo.text import parse_share

    root = folder(zoo)
    given = None if inputs is None else _inputs(root, inputs, data, for_activations=method == "activations")
    network, shape = _network(root, module), parse_input_shape(input_shape)
    scaled = None if gauge is None else gauge_named(gauge, "align")
    if on is not None:
        # shares would each begin to make it
        if to == BARYCENTRE:
            keep_barycentre(
                root, label=label, gauge=scaled, barycentre_zoo=barycentre_zoo, module=network, input_shape=shape
            )
        work_on_ray(context, on)
    with bar("aligning") as progress:
        derived = align_zoo(
            root,
            to,
            label=label,
            method=method,
            gauge=scaled,
            scales=scales,
            barycentre_zoo=barycentre_zoo,
            store=store,
            certify=certify,
            inputs=given,
            inputs_name="" if inputs is None else Path(inputs).name if Path(inputs).is_file() else inputs,
            module=network,
            input_shape=shape,
            share=parse_share(share),
            progress=progress,
        )
    _report(zoo, derived, certify, _names(inputs=given, network=network), as_json=as_json)


def _report(zoo: str, derived: "Derived", certify: str, given: Sequence[str], *, as_json: bool) -> None:
    """Report what was derived; end with 1 where equivalence checks of the variant have failed."""
    from ckptzoo.text import printable

    if as_json:
        emit(asdict(derived))
    else:
        _print_derived(zoo, derived, certify, given)
    if derived.failed.ids:
        print(printable(str(derived.failed.problem(zoo, derived.gauge))), file=sys.stderr)
        raise typer.Exit(PROBLEMS)


def _names(**given: Any) -> list[str]:
    """Return the names of the options that were given for equivalence checks."""
    return [name for name, value in given.items() if value is not None]


def _print_derived(zoo: str, derived: "Derived", certify: str, given: Sequence[str]) -> None:
    """Report what was derived; ``given`` names the options that were given for equivalence checks."""
    from ckptzoo.derive.checks import missing_for_checks
    from ckptzoo.text import counted

    new = counted(derived.checkpoints, "checkpoint")
    print(f"{zoo}: {new} derived in {derived.gauge}, {derived.already:,} were there already.")
    if derived.store != "weights" and not derived.checkpoints:
        print("nothing was stored again: parts that are there stay as they are stored.")
    if derived.checked_later:
        print(f"equivalence checks were added to {counted(derived.checked_later, 'checkpoint')} derived before.")
    elif not derived.checkpoints and certify == "auto" and given:
        unused = " and ".join("--module" if name == "network" else f"--{name}" for name in given)
        was = "were" if len(given) > 1 else "was"
        print(f"{unused} {was} not used: all are derived; --certify all checks what was not checked.")
    if derived.checkpoints:
        certified = sum(item.checkpoints for item in derived.certified)
        spent = f", {derived.certifying:.1f} s of them for the equivalence checks of {certified:,}" if certified else ""
        print(f"took {derived.seconds:.1f} s{spent}")
        if not derived.certified and certify == "auto" and derived.untouched < derived.checkpoints:
            lacks, options = missing_for_checks(network="network" in given)
            print(f"no equivalence check: {lacks}; {options} adds it.")
    for number, what in (
        (derived.untouched, "left as they are: not finite, or not representable in the gauge"),
        (derived.tied, "with ties"),
        (derived.unresolved, "with ties that stay unresolved: their order is not unique"),
        (derived.dead, "with dead channels"),
        (derived.clamped, "with filters that a running variance of 0 keeps from unit norm"),
        (derived.degenerate, "with blocks of matrices of lower rank: the same function, but no group element"),
    ):
        if number:
            print(f"{number:,} {what}")
    for kind in ("random", "real"):
        listed = [(getattr(item, kind), item) for item in derived.certified]
        worst = [f"{gap:.1e} in {item.precision}" for gap, item in listed if gap is not None]
        if worst:
            print(f"largest difference of the outputs over the largest output, {kind} inputs: {', '.join(worst)}")


def predict(
    context: typer.Context,
    zoo: ZooFolder,
    sets: Annotated[
        list[str],
        typer.Argument(
            metavar="SET...",
            help="mnist/test, or mnist/test-100 for its first 100 examples; svhn/test, cifar10-c/fog-3, ...",
            show_default=False,
        ),
    ],
    data: Data = None,
    inputs: LabelledFile = None,
    where: Where = None,
    module: Module = None,
    share: Share = "0/1",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Store what every checkpoint answers on sets of images.

    The outputs of all checkpoints, in float16, beside the weights; zoo.predictions("mnist/test") reads them. Pixels are
    scaled for each checkpoint as its row says. What is stored already is left alone: a second call adds what is
    missing. --where takes whole parts, such as those of one contributor. With --inputs they are your own, as the
    networks take them, under the one name SET, such as my-data/test.
    """
    import ckptzoo
    from ckptzoo import derive
    from ckptzoo.derive.labelled import read_inputs
    from ckptzoo.hub.contributions.inputs import ZooInputs, inputs_to_store
    from ckptzoo.text import parse_share

    root = folder(zoo)
    if inputs is not None and len(set(sets)) != 1:
        raise typer.BadParameter(f"expected one SET, the name of what is in {inputs}, got {len(set(sets))}.")
    if inputs is not None and data is not None:
        raise typer.BadParameter("--data is for sets that are known by name; leave it out, or --inputs.")
    if on is not None:
        work_on_ray(context, on)
    chosen = ckptzoo.open(root)
    chosen = chosen if where is None else chosen.where(where)
    network = _network(root, module)
    results = []
    for name in dict.fromkeys(sets):
        seen = inputs_to_store(chosen, name, data=data) if inputs is None else ZooInputs(*read_inputs(inputs))
        with bar(f"predicting {name}") as progress:
            results.append(
                derive.predict(
                    root,
                    seen.inputs,
                    set=name,
                    targets=seen.targets,
                    others=seen.others,
                    where=where,
                    module=network,
                    share=parse_share(share),
                    progress=progress,
                )
            )
        if not as_json:
            results[-1].print(console())
    if as_json:
        emit({"zoo": zoo, "sets": [result.to_json() for result in results]})


def landscape(
    zoo: ZooFolder,
    set: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="SET",
            help="Labelled inputs, such as mnist/test-500.  [default: the first 1,000 of the networks' test set]",
        ),
    ] = None,
    data: Data = None,
    inputs: LabelledFile = None,
    where: Where = None,
    module: Module = None,
    probes: Annotated[
        int, typer.Option(metavar="N", min=30, max=100_000, help="Random vectors of an estimated trace.")
    ] = 64,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, max=1_000, help="Steps of Lanczos' method, at most, for an eigenvalue.")
    ] = 32,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the random vectors.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Store trace and largest eigenvalue of the Hessian of every checkpoint's loss.

    Exact for networks of up to 1,000 parameters, else estimated, with errors; zoo.landscape() reads them and ckptzoo
    study landscape draws them. What was measured before is left alone, so that a call that was killed is continued by
    the next. With --inputs they are your own, as the networks take them, under the name SET, such as my-data/test.
    """
    import ckptzoo
    from ckptzoo import derive
    from ckptzoo.derive.labelled import read_labelled
    from ckptzoo.hub.contributions.inputs import labelled_of

    root = folder(zoo)
    if inputs is not None and (data is not None or set is None):
        raise typer.BadParameter("--inputs needs a name for what is in it, --set my-data/test, and no --data.")
    chosen = ckptzoo.open(root)
    chosen = chosen if where is None else chosen.where(where)
    labelled = labelled_of(chosen, set, data=data) if inputs is None else read_labelled(inputs)
    name = set or labelled.set
    if set is None and len(labelled.inputs) > _MAX_EXAMPLES:
        name = f"{name}-{_MAX_EXAMPLES}"
    count = len(labelled.inputs) if set is not None else _MAX_EXAMPLES
    with bar(f"measuring on {name}") as progress:
        measured = derive.landscape(
            root,
            labelled.inputs[:count],
            labelled.targets[:count],
            set=name,
            where=where,
            module=_network(root, module),
            probes=probes,
            steps=steps,
            seed=seed,
            progress=progress,
        )
    print_result(measured, as_json)


def dedupe(
    context: typer.Context,
    zoo: ZooAddress,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Relative norm up to which every tensor must agree.  [default: 4 roundings of the stored precision]",
        ),
    ] = None,
    where: Where = None,
    module: Module = None,
    input_shape: InputShape = None,
    saved_in: Annotated[
        Path | None,
        typer.Option("--saved", metavar="FOLDER", help="Keep what is computed of each block of checkpoints there."),
    ] = None,
    share: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Only compute every N-th block, beginning with the I-th, counted from 0; needs --saved."
        ),
    ] = "",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Find checkpoints that are one network, permuted or rescaled, and members that compute nearly the same.

    Two are the same when their weights agree but for permutations and scales that change no output. Two are near when
    their softmax outputs are nearer than a tenth of the first percentile of distances between independent members:
    copies that were rounded, shifted or covered with noise. Nothing is written; the exit code is 0 whether or not
    there are any.
    """
    from ckptzoo.derive import dedupe as find
    from ckptzoo.derive.near_copies import near_copies
    from ckptzoo.errors import IntegrityError, ZooError
    from ckptzoo.hub.contributions.evaluation import own_network
    from ckptzoo.text import counted, printable

    if (share or on is not None) and saved_in is None:
        raise typer.BadParameter("expected --saved FOLDER, where all who share the work keep what they computed.")
    chosen = opened(zoo, where)
    network, shape = own_network(chosen.arch, module), parse_input_shape(input_shape)
    if share:
        assert saved_in is not None
        _dedupe_share(chosen, network, shape, saved_in, share)
        return
    if on is not None:
        work_on_ray(context, on)
    with bar("comparing") as progress:
        duplicates = find(
            chosen, tolerance=tolerance, module=network, input_shape=shape, saved_in=saved_in, progress=progress
        )
    near, reason = None, None
    try:
        with bar("evaluating") as progress:
            near = near_copies(chosen, module=network, input_shape=shape, saved_in=saved_in, progress=progress)
    # damage ends the command; without a network or inputs only the outputs are not compared
    except IntegrityError:
        raise
    except ZooError as error:
        reason = str(error)
    if as_json:
        pairs = None if near is None else [{"ids": pair.ids, "distance": pair.distance} for pair in near.pairs]
        outputs = {"near": pairs, "found": None if near is None else near.found}
        outputs |= {"threshold": None if near is None else near.threshold, "not_compared": reason}
        emit({"zoo": zoo, **duplicates.to_json(), "outputs": outputs})
        return
    _print_copies(zoo, duplicates)
    if near is None:
        print(printable(f"outputs were not compared: {reason}"))
        return
    group_of = {name: number for number, ids in enumerate(duplicates.groups) for name in ids}
    others = [pair for pair in near.pairs if group_of.get(pair.ids[0], -1) != group_of.get(pair.ids[1], -2)]
    for pair in others[:_MAX_PAIRS]:
        print(printable(f"nearly the same outputs: {pair.ids[0]}, {pair.ids[1]} (distance {pair.distance:.2g})"))
    within = f"nearer than {near.threshold:.2g}, a tenth of what independent ones are apart"
    if len(others) > _MAX_PAIRS:
        more = counted(len(others) - _MAX_PAIRS, "more pair")
        print(f"{more}; --json lists the nearest {len(near.pairs):,}.")
    # outputs of copies are near, too, and pairs beyond those that are listed may be of copies
    of_copies, number = len(others) < len(near.pairs), len(others)
    count = counted(number, "other pair" if of_copies else "pair") if number or not of_copies else "no other pairs"
    if near.found > len(near.pairs):
        count = f"{near.found:,} pairs, copies among them,"
    print(f"outputs of {counted(near.compared, 'member')} compared: {count} {within}.")


def _print_copies(zoo: str, duplicates: "Duplicates") -> None:
    """Print groups of copies and pairs of near weights, the first of many, and what was not compared."""
    from ckptzoo.text import counted, printable

    for ids, identical in list(zip(duplicates.groups, duplicates.identical, strict=True))[:_MAX_PAIRS]:
        print(printable(f"{'the same' if identical else 'the same to rounding'}: {_named(ids)}"))
    if len(duplicates.groups) > _MAX_PAIRS:
        print(f"{counted(len(duplicates.groups) - _MAX_PAIRS, 'more group')}; --json lists all.")
    for pair in (duplicates.near or ())[:_MAX_PAIRS]:
        print(printable(f"nearly the same weights, {pair.distance:.2g} apart: {', '.join(pair.ids)}"))
    compared = counted(duplicates.checkpoints, "checkpoint")
    print(f"{zoo}: {compared} compared, {duplicates.spare:,} of them permuted or rescaled copies.")
    if duplicates.uncertain:
        print(f"{duplicates.uncertain:,} with channels that look alike: scaled copies of them may be missed")
    if duplicates.skipped:
        shown = _named(duplicates.skipped)
        print(printable(f"{len(duplicates.skipped):,} not compared, not finite or with ties unresolved: {shown}"))


def _named(ids: Sequence[str]) -> str:
    """Return the first of some ids in a line, and how many more there are."""
    return ", ".join(ids[:_MAX_NAMED]) + (f", and {len(ids) - _MAX_NAMED:,} more" if len(ids) > _MAX_NAMED else "")


def _dedupe_share(zoo: "Zoo", network: Any, shape: tuple[int, ...] | None, saved_in: Path, share: str) -> None:
    """Compute a share of the blocks, and report how many are there."""
    from ckptzoo.derive.duplicates import descriptions
    from ckptzoo.derive.near_copies import outputs
    from ckptzoo.errors import ZooError, require
    from ckptzoo.text import parse_share

    number, shares = parse_share(share)
    described = [descriptions(zoo, module=network, input_shape=shape, saved_in=saved_in)]
    # the command itself says why outputs are not compared
    with contextlib.suppress(ZooError):
        require("torch", "torch")
        described.append(outputs(zoo, module=network, input_shape=shape, saved_in=saved_in))
    done = count = 0
    for rows in described:
        with bar("describing") as progress:
            # the blocks of the second kind are counted on from the first's, or the first shares would have more of both
            kept, blocks = rows.share(((number - count) % shares, shares), progress)
        done, count = done + kept, count + blocks
    then = "The same command without --share has the result." if done == count else "Others are missing."
    print(f"{saved_in}: {done:,} of {count:,} blocks. {then}")


def _inputs(root: Path, named: str, data: Path | None, *, for_activations: bool = False) -> "np.ndarray":
    """Return real inputs: those of a file, or of a data set as the networks of a zoo take them, for a check the first
    few.
    """
    import ckptzoo
    from ckptzoo.derive.checks import RANDOM_INPUTS
    from ckptzoo.hub.contributions.inputs import inputs_of

    path = Path(named)
    # a file that is not there is named as one, and no data set
    if path.exists() or path.suffix in (".npy", ".npz"):
        return _inputs_in(path)
    name = named if "/" in named else f"{named}/test"
    inputs = inputs_of(ckptzoo.open(root), name, data=data).inputs
    return inputs if for_activations else inputs[:RANDOM_INPUTS]


def _inputs_in(path: Path) -> "np.ndarray":
    from zipfile import BadZipFile

    import numpy as np

    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)  # a pickle in a .npy file would run code
            if isinstance(loaded, np.ndarray):
                return loaded
            if len(loaded.files) == 1 or "inputs" in loaded.files:
                return loaded["inputs" if "inputs" in loaded.files else loaded.files[0]]
            got = f"{len(loaded.files)} arrays"
    except FileNotFoundError:
        got = "nothing"
    # numpy raises ValueError for pickles and unknown formats, EOFError for empty files, BadZipFile for broken archives
    except (ValueError, EOFError, BadZipFile, IsADirectoryError):
        got = "another file"
    raise typer.BadParameter(f"{path}: expected a .npy file, or a .npz file with one array, got {got}.")


def _network(root: Path, module: str | None) -> Any:
    """Return the user's own network; None where none is named."""
    if module is None:
        return None
    import ckptzoo
    from ckptzoo.hub.contributions.evaluation import own_network

    return own_network(ckptzoo.open(root).arch, module)
