"""Kinds of symmetry, one module each: what a group of channels may do without a change of the function."""
