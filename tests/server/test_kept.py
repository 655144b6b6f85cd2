"""Computed results that are kept in memory within a bound."""

from ckptzoo.server.kept import Kept


def test_a_value_larger_than_the_bound_leaves_the_others() -> None:
    kept, made = Kept[bytes](10, len), list[str]()

    def asked(key: str, size: int) -> bytes:
        return kept.get(key, lambda: made.append(key) or bytes(size))

    for key, size in (("a", 4), ("b", 6), ("large", 11), ("a", 4), ("b", 6), ("large", 11), ("c", 6), ("a", 4)):
        assert len(asked(key, size)) == size and kept.held <= 10
    # "c" takes the place of "a" and "b"
    assert made == ["a", "b", "large", "large", "c", "a"]
