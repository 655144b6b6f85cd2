"""Programs that train zoos and write them; run with ``ckptzoo-build``, or ``python -m builders``."""
