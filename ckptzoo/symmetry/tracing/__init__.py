"""Symmetry tables read off torch modules: tracing, rules for operations, tables, verification. Imports torch."""
