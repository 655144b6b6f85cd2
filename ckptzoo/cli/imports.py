"""``ckptzoo import`` and ``ckptzoo link``."""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import AsJson, bar, parse_input_shape, print_result, proposing_names

if TYPE_CHECKING:
    from ckptzoo.hub.imports import ImportResult


def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders, archives (tar, also packed, or zip), files; https:// or hf://; 'hf://org/model@step*'; a "
            "list of them (.txt).",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="ZOO", help="The zoo's folder, new or there already.", show_default=False)
    ],
    adapter: Annotated[
        str,
        typer.Option("--as", metavar="FORMAT", help="How the checkpoints are published; see docs/guide/imports.md."),
    ] = "auto",
    names: Annotated[
        str | None,
        typer.Option("--names", metavar="FILE|order", help="TOML with old and new names of tensors, or by order."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="NAME", help="The network, a name of ckptzoo.archs.")
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="FILE.py:NAME",
            help="A file of your own, which is executed here; NAME() makes the network; once for each activation.",
        ),
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", metavar="CxHxW", help="The shape of one example, for --module.")
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option("--split-by", metavar="NAME", help="A zoo for each value, such as extra.model.nlin."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, list it in a report, and exit with 1.")
    ] = False,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="PATTERN",
            help="Only checkpoint files whose path, name or folder fits, such as '*.pt'.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="No files whose path, name or folder fits, such as wandb."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what each file would be taken for; read no networks, write nothing.")
    ] = False,
    license: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="SPDX",
            help="The licence of the weights; needed unless their format (--as) has one of its own.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME", help="The data set that they were trained on.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="X,...", help="Inputs were (pixel / 255 - mean) / std.")
    ] = None,
    std: Annotated[
        str | None, typer.Option("--std", metavar="X,...", help="See --mean; ckptzoo predict uses them.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option("--metadata", metavar="X.csv", help="For files: a row for each, by its column path."),
    ] = None,
    layout: Annotated[
        Path | None, typer.Option("--layout", metavar="X.csv", help="For vectors: where each tensor is.")
    ] = None,
    id_pattern: Annotated[
        str | None, typer.Option("--id", metavar="PATTERN", help='For files: such as "{stem}" or "{parent}-{stem}".')
    ] = None,
    member: Annotated[
        str | None,
        typer.Option("--member", metavar="REGEX", help="For files: what in a path names its run, such as 'seed\\d+'."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="REGEX", help="For files: the number of a step in a path: 'ckpt_(\\d+)'."),
    ] = None,
    stacked: Annotated[
        bool | None,
        typer.Option(
            "--stacked/--no-stacked", help="For files: whether the first axis of every tensor counts samples."
        ),
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            "--networks",
            metavar="PREFIX,...",
            help="For files: several networks in one, 'actor,critic' or 'members.*'.",
        ),
    ] = None,
    checkpoint_offset: Annotated[
        int | None,
        typer.Option("--checkpoint-offset", metavar="N", help="For ray-tune: iteration less the checkpoint's number."),
    ] = None,
    percent: Annotated[bool, typer.Option("--percent", help="Accuracies are in percent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring published checkpoints into a zoo.

    Reads archives member by member, without unpacking them; files are data, and nothing in them is executed. What the
    zoo has already is left out, so that the same command goes on where it was interrupted. Where members have several
    architectures, ZOO becomes a folder with a zoo for each.
    """
    from ckptzoo.hub.imports import import_zoo

    _bring(import_zoo, **{name: value for name, value in locals().items() if name != "import_zoo"})


def link(sources: list[str], **options: Any) -> None:
    """Make a zoo of checkpoints whose weights stay in their files, which it refers to.

    Takes safetensors files, files of torch.save, arrays of numpy, GGUF files and members of tar archives of this
    machine, and all of these but members of archives of hubs, at the commit of a revision, and of web servers.
    Gives checkpoints the ids and facts that import gives them. Reads headers and no weights. The zoo is read as any
    other; a file that changes later is an error that names it. What the zoo has already is left out, so that the same
    command goes on where it was interrupted, and adds what is new. ckptzoo materialize copies the weights, or some of
    them.
    """
    from ckptzoo.hub.imports import link_zoo

    _bring(link_zoo, sources if len(sources) > 1 else sources[0], **options)


_Source = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="Folders or files of this machine; hf://org/model@revision, 'hf://org/model@step*'; https:// of a file or "
        "of a page that lists files; a list of them (.txt).",
        show_default=False,
    ),
]
# typer reads options from the signature, and link has those of import
_parameters = list(inspect.signature(import_).parameters.values())[1:]
_first = inspect.Parameter("sources", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_Source)
link.__signature__ = inspect.Signature([_first, *_parameters])
link.__annotations__ = {"sources": _Source, **{item.name: item.annotation for item in _parameters}, "return": None}


def _bring(
    function: Callable[..., "ImportResult"],
    sources: str | list[str],
    *,
    to: Path,
    adapter: str,
    names: str | None,
    arch: str | None,
    modules: list[str] | None,
    input_shape: str | None,
    split_by: str | None,
    skip_bad: bool,
    include: list[str] | None,
    exclude: list[str] | None,
    dry_run: bool,
    license: str | None,
    dataset: str | None,
    mean: str | None,
    std: str | None,
    metadata: Path | None,
    layout: Path | None,
    id_pattern: str | None,
    member: str | None,
    step: str | None,
    stacked: bool | None,
    networks: str | None,
    checkpoint_offset: int | None,
    percent: bool,
    as_json: bool,
) -> None:
    """Bring sources into a zoo, by ``import_zoo`` or ``link_zoo``, or say what would be done."""
    from ckptzoo.hub.imports import Options, plan_import
    from ckptzoo.hub.imports.tables import read_by_path, text_of

    table = None if names in (None, "order") else _names_in(Path(str(names)))
    scaling = None if mean is None and std is None else (_numbers(mean, 0.0, "--mean"), _numbers(std, 1.0, "--std"))
    options = Options(
        id_pattern,
        None if metadata is None else read_by_path(metadata.read_bytes(), str(metadata)),
        None if layout is None else text_of(layout.read_bytes(), str(layout)).getvalue(),
        checkpoint_offset,
        percent,
        member,
        step,
        stacked,
        None if networks is None else tuple(networks.split(",")),
    )
    if dry_run:
        with bar("looking", nbytes=True) as progress:
            plan = plan_import(
                sources,
                adapter=adapter,
                include=include or (),
                exclude=exclude or (),
                license=license,
                options=options,
                progress=progress,
            )
        print_result(plan, as_json)
        if plan.problems or not plan.files:
            raise typer.Exit(PROBLEMS)
        return
    doing = "importing" if function.__name__ == "import_zoo" else "linking"
    with proposing_names("a file for --names"), bar(doing, nbytes=True) as progress:
        result = function(
            sources,
            to,
            adapter=adapter,
            # a file of --names is such a table alone, or a contribution.toml with the table [names]
            names=names if names == "order" else (table or {}).get("names", table),
            arch=arch,
            module=modules or None,
            input_shape=parse_input_shape(input_shape),
            split_by=split_by,
            skip_bad=skip_bad,
            include=include or (),
            exclude=exclude or (),
            license=license,
            dataset=dataset,
            scaling=scaling,
            options=options,
            progress=progress,
        )
    print_result(result, as_json)
    if result.skipped:
        raise typer.Exit(PROBLEMS)


def _names_in(path: Path) -> dict[str, Any]:
    from ckptzoo.hub.imports.tables import bytes_of, text_of

    try:
        return tomllib.loads(text_of(bytes_of(path), str(path)).getvalue())
    # numbers of more than 4,300 digits are a ValueError; nested lists meet Python's limit
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path}: expected TOML, got {error}.", param_hint="--names") from None


def _numbers(text: str | None, default: float, option: str) -> list[float]:
    try:
        return [default] if text is None else [float(number) for number in text.split(",")]
    except ValueError:
        step = "Write one for each channel."
        problem = f"expected numbers such as 0.5 or 0.49,0.48,0.45, got {text!r:.100}. {step}"
        raise typer.BadParameter(problem, param_hint=option) from None
