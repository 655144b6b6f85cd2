"""Programs that train zoos and write them; run from the checkout with ``python -m builders``."""
