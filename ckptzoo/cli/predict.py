"""``ckptzoo predict``: store what every checkpoint answers on sets of inputs."""

from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.options import AsJson, ZooFolder, folder
from ckptzoo.cli.output import bar, console, emit


def predict(
    zoo: ZooFolder,
    sets: Annotated[
        list[str],
        typer.Argument(
            metavar="SET...",
            help="mnist/test, or mnist/test-100 for its first 100 examples; fashion-mnist/test, ...",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where test sets lie.  [default: CKPTZOO_DATA]", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store what every checkpoint answers on sets of images.

    The outputs of all checkpoints, in float16, beside the weights; zoo.predictions("mnist/test") reads them. Pixels are
    scaled as the zoo's own data set is. What is there already is left alone: a second call adds what is missing.
    """
    import ckptzoo
    from ckptzoo import derive
    from ckptzoo.hub.inputs import inputs_of

    root = folder(zoo)
    chosen = ckptzoo.open(root)
    made = []
    for name in dict.fromkeys(sets):
        inputs, targets = inputs_of(chosen, name, data=data)
        with bar(f"predicting {name}") as progress:
            made.append(derive.predict(root, inputs, set=name, targets=targets, progress=progress))
        if not as_json:
            made[-1].print(console())
    if as_json:
        emit({"zoo": zoo, "sets": [found.to_json() for found in made]})
