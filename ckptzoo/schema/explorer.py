"""Which explorer pages are ours: the digests of what runs in them."""

BUNDLES: tuple[str, ...] = (
    "sha256-b4sYRkC2txf7UhWxXAPlb4U05K3Cyw5BLHkfP8Q5Ojo=",
    "sha256-+TmryM47biZF3vbDx0OZ1Nsmw2cNepeYDWSscsMbw3g=",
)
"""``sha256-...`` in base64, as a Content-Security-Policy has it, of each released script and style sheet, the newest
first; none is ever removed, so that older pages are shown. A hub runs these and no others."""
