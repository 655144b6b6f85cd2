"""The commands that draw from approximate posteriors."""

from pathlib import Path
from typing import Annotated, Any

import typer

from builders.cli.options import (
    AsJson,
    DataFolder,
    Device,
    NewZoo,
    Predictions,
    RecipeName,
    SaveEvery,
    Training,
    console_of,
    parse_settings,
    print_report,
)
from ckptzoo.cli.options import expand_dataclasses
from ckptzoo.cli.ray_shares import On, work_on_ray


@expand_dataclasses
def posterior(
    context: typer.Context,
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="dropout, bnn, sghmc, csghmc, swag, laplace or hmc.", show_default=False),
    ],
    recipe: RecipeName,
    modes: Annotated[int, typer.Option(min=1, help="How many modes: chains, or members of the zoo named by --from.")],
    draws: Annotated[int, typer.Option(min=1, help="How many draws of each mode the zoo is to hold.")],
    to: NewZoo,
    training: Training,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ZOO",
            help="The zoo whose members are the modes: swag, laplace, and bnn and hmc if asked.",
        ),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The method's settings; by default those of the paper.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value of a setting; repeatable.")
    ] = None,
    share: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Only every N-th unit, beginning with the I-th, counted from 0; others take the rest."
        ),
    ] = "",
    on: On = None,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say how long it would take, from a few seconds; writes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make draws of an approximate posterior and add them to a zoo, each a checkpoint of its own.

    Stopped or killed at any moment, the same command carries on; draws that the zoo holds are not taken again.
    """
    from builders import predicting
    from builders.posterior import build as posterior_build
    from ckptzoo.text import parse_share

    if on is not None and share:
        raise typer.BadParameter("expected one of --share and --on.")
    console, wanted = console_of(), training.of(recipe)
    shared: dict[str, Any] = {"modes": modes, "draws": draws, "start": start, "settings": settings}
    shared |= {"changes": parse_settings(changes or []), **training.options()}
    if estimate:
        print_report(posterior_build.estimate(method, wanted, **shared), as_json)
        return
    sets = predicting.input_sets(wanted, training.data) if predictions else ()
    if on is not None:
        work_on_ray(context, on, training.device)
    if share:
        shared["share"] = parse_share(share)
    built = posterior_build.build(method, wanted, to, **shared, save_seconds=save_every, console=console)
    console.print(built.line(), highlight=False, soft_wrap=True)
    if not share:
        predicting.predict(to, sets, console)


def posteriors(
    recipe: RecipeName,
    members: Annotated[Path, typer.Option("--members", metavar="ZOO", help="A zoo of the recipe's members.")],
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo of draws; made where there is none.")],
    methods: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only this; repeatable.  [default: all]")
    ] = None,
    modes: Annotated[int, typer.Option(min=2, help="How many modes stand for several.")] = 10,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each of several modes.")] = 10,
    one_mode_draws: Annotated[int, typer.Option(min=2, help="Draws of one mode.")] = 100,
    replicates: Annotated[int, typer.Option(min=1, help="Repetitions of all of it, with other modes.")] = 3,
    ensemble: Annotated[int, typer.Option(min=2, help="Members of an ensemble.")] = 100,
    data: DataFolder = None,
    device: Device = "cpu",
) -> None:
    """Make draws of every method, compare them with independent members, and print tables beside the paper's.

    Pictures and tables go to ZOO-pictures. Stopped or killed at any moment, the same command carries on.
    """
    from builders.posterior.comparison import compare

    compare(
        recipe,
        members,
        to,
        methods=methods,
        modes=modes,
        draws=draws,
        one_mode_draws=one_mode_draws,
        replicates=replicates,
        ensemble=ensemble,
        folder=data,
        device=device,
        console=console_of(),
    )
