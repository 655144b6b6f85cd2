"""Zoos between people: publish, find, fetch, contribute, review."""
