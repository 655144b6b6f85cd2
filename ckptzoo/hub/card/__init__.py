"""The README.md of a zoo: made from the card that a person wrote and from the zoo itself.

::

    files     read card.toml, write README.md
    page      the page: head, how to load the zoo, and a section for each thing that is known
    contents  what the sections say about what a zoo holds: sizes, accuracies, variants, tensors
    markdown  code spans, tables and fences in which untrusted text can only be read
"""

from ckptzoo.hub.card.files import Written, card_in, card_of, write
from ckptzoo.hub.card.page import check_pictures, read_pictures, readme

__all__ = ["Written", "card_in", "card_of", "check_pictures", "read_pictures", "readme", "write"]
