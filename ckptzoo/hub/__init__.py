"""Zoos on hubs: publish, find, fetch, contribute and review.

::

    push/           publish a zoo, and make its page on a hub again
    pull/           fetch a zoo, or a part of one that is itself a zoo
    search          find zoos by the tags of their cards
    contributions/  bring checkpoints to somebody's zoo by a pull request, and review one
    card/           the README.md of a zoo
    untrusted/      read files of weights from others as data
    client/         the hub's protocol, with retries
"""
