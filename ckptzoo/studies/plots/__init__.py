"""The pictures of the studies, one module a study. These import matplotlib, so studies import them inside functions."""
