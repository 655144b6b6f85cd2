"""``python -m builders``: train zoos from recipes."""
