"""Alignment: permutations that bring networks close to a reference, and means of many networks."""
