"""Which explorer pages are ours: the digests of what runs in them."""

BUNDLES: tuple[str, ...] = ()
"""``sha256-...`` in base64, as a Content-Security-Policy has it, of each released script and style sheet. A hub runs
these and no others; as long as there are none, it shows no explorer."""
