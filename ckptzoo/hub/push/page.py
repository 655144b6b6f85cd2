"""README.md of a repository, for what it holds or will hold, from the card that a person wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.format.files import Files
from ckptzoo.format.reader import contents_of, read_contents
from ckptzoo.format.tree import Tree
from ckptzoo.hub.card import card_in, readme
from ckptzoo.hub.card.croissant import croissant
from ckptzoo.hub.card.pictures import check_pictures
from ckptzoo.loader.selection import standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, Card

NO_CARD = f"README.md stays as it is, because there is no {CARD_TOML} to make it from; cards/template has one."
NO_LICENCE = f"no licence is stated, so that nobody may use the zoo; add license to {CARD_TOML}."


@dataclass(frozen=True)
class ReadmePage:
    """README.md as it should be, None where it cannot be made; ``notes`` says why, and that no licence is stated.
    ``has_card`` says whether there is a card to make it from; ``croissant`` is the croissant.json of a zoo.
    """

    data: bytes | None
    notes: tuple[str, ...] = ()
    has_card: bool = True
    croissant: bytes | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """Those that can be made, by their names."""
        made = {layout.README: self.data, layout.CROISSANT: self.croissant}
        return {name: data for name, data in made.items() if data is not None}


def page_of(
    files: Files, repo: str, card: Card, folder: str = "", trees: Mapping[str, Tree] | None = None
) -> ReadmePage:
    """Make the page of a zoo in a repository, ``org/zoo``, or in a folder of one.

    ``trees`` are those of the files, where they were read before. Raises ``SpecError`` where the card is another
    zoo's, or names a picture that is not among the files; ``IntegrityError`` where the zoo is damaged.
    """
    contents = read_contents(files) if trees is None else contents_of(files, trees)
    zoo = Zoo(contents, {}, standing(contents))
    if card.name != zoo.name:
        step = "Name the zoo in the card, or take the card of this zoo."
        raise SpecError(Problem(f"{files.name}/{CARD_TOML}", "name", repr(zoo.name), repr(card.name), step))
    check_pictures(files, card)
    licence_stated = bool(card.license.strip()) or (len(zoo) > 0 and zoo.column("license").null_count == 0)
    here, notes = replace(card, repository=repo), () if licence_stated else (NO_LICENCE,)
    return ReadmePage(readme(zoo, here, folder).encode(), notes, croissant=croissant(zoo, here))


def page_or_note(
    files: Files, repo: str, folder: str = "", *, local_card: bool, trees: Mapping[str, Tree] | None = None
) -> ReadmePage:
    """Make the page as ``page_of``, from the card among the files; a note where there is no page to make.

    With ``local_card`` the card is in the caller's folder, where it can be corrected: ``SpecError`` says that it is not
    valid, or another zoo's, or names a picture that does not exist.
    """
    try:
        if files.size(CARD_TOML) is None:
            return ReadmePage(None, (NO_CARD,), has_card=False)
        return page_of(files, repo, card_in(files), folder, trees)
    except (SpecError, IntegrityError) as error:
        if local_card and isinstance(error, SpecError):
            raise
        # What others damaged in the repository must not keep anybody from publishing.
        return ReadmePage(None, (f"README.md stays as it is: {error.problem}",))
