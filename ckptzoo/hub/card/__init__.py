"""The README.md of a zoo: made from what a person wrote and from the zoo itself."""

from ckptzoo.hub.card.files import Written, card_in, card_of, write
from ckptzoo.hub.card.page import check_pictures, read_pictures, readme

__all__ = ["Written", "card_in", "card_of", "check_pictures", "read_pictures", "readme", "write"]
