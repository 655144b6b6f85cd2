"""The README.md of a zoo or a collection: made from the card that a person wrote and from what the zoos hold.

::

    files       read card.toml, write README.md
    page        the page: head, how to load the zoo, and a section for each thing that is known
    collection  the page of a collection: a line for each zoo
    contents    what the sections say about what a zoo holds: sizes, accuracies, variants, tensors
    explorer    whether there is an explorer, reading it, and its section
    pictures    which pictures can be shown, reading them, and their section
    markdown    code spans, tables and fences in which untrusted text can only be read
"""

from ckptzoo.hub.card.files import Written, card_in, card_of, write
from ckptzoo.hub.card.page import readme

__all__ = ["Written", "card_in", "card_of", "readme", "write"]
