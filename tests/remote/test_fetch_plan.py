"""``plan``: every wanted byte is requested once, waste is limited, the order is kept, and requests are few."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.remote.fetch import FEW_REQUESTS, SPLIT_BYTES, WASTE_BYTES, WASTE_SHARE, RangeRequest, plan
from ckptzoo.schema.layout import Span

MIB = 2**20
NONE = bytes(32)


@st.composite
def blocks(draw: st.DrawFn) -> list[Span]:
    """Blocks of up to three files that do not overlap, in any order."""
    made: list[Span] = []
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        at = 0
        for gap, size in draw(
            st.lists(
                st.tuples(
                    st.sampled_from([0, 0, 1, 1000, 90_000, 150_000, 199_999, 200_000, 200_001, MIB]),
                    st.sampled_from([1, 700, 64 * 1024, 3 * MIB, 4 * MIB, 40 * MIB]),
                ),
                max_size=12,
            )
        ):
            made.append(Span(name, at + gap, at + gap + size, NONE))
            at += gap + size
    return draw(st.permutations(made)) if draw(st.booleans()) else made


@settings(deadline=None)
@given(blocks(), st.data())
def test_laws(wanted: list[Span], data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(wanted)))))) if wanted else []
    requests = plan(wanted, places, split_limit=256 * MIB)
    # every wanted block is brought once, inside its request
    assert sorted(place for request in requests for place in request.places) == places
    for request in requests:
        assert request.start == wanted[request.places[0]].start and request.stop == wanted[request.places[-1]].stop
        for place in request.places:
            assert (
                wanted[place].name == request.name
                and request.start <= wanted[place].start < wanted[place].stop <= request.stop
            )
        # the order of the reader is the order in the file
        assert list(request.places) == sorted(request.places)
        assert all(wanted[a].stop <= wanted[b].start for a, b in pairwise(request.places))
    assert [request.places[0] for request in requests] == sorted(request.places[0] for request in requests)
    for name in {request.name for request in requests}:
        mine = [request for request in requests if request.name == name]
        need = sum(wanted[place].stop - wanted[place].start for request in mine for place in request.places)
        asked = sum(request.stop - request.start for request in mine)
        assert asked - need <= max(WASTE_BYTES, WASTE_SHARE * need)
        assert asked - need <= WASTE_SHARE * need or len(mine) >= FEW_REQUESTS


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 1000, 60_000, 90_000, 150_000, 250_000]), max_size=7), st.sampled_from([1000, 3 * MIB])
)
def test_no_other_choice_of_gaps_gives_fewer_requests(gaps: list[int], size: int) -> None:
    wanted, at = [Span("a", 0, size, NONE)], size
    for gap in gaps:
        wanted.append(Span("a", at + gap, at + gap + size, NONE))
        at += gap + size

    def fewest(waste: float) -> int:
        counts = range(len(gaps) + 1)
        return len(wanted) - max(n for n in counts if any(sum(some) <= waste for some in combinations(gaps, n)))

    share = WASTE_SHARE * size * len(wanted)
    expected = min(fewest(share), max(FEW_REQUESTS, fewest(max(share, WASTE_BYTES))))
    assert len(plan(wanted, range(len(wanted)), split_limit=0)) == expected


def test_a_layer_of_one_tensor_is_one_request_or_two() -> None:
    def layer(count: int) -> list[Span]:
        return [Span("raw-00", at * 4 * MIB, (at + 1) * 4 * MIB, NONE) for at in range(count)]

    assert plan(layer(15), range(15), split_limit=256 * MIB) == [RangeRequest("raw-00", 0, 60 * MIB, tuple(range(15)))]
    halves = plan(layer(16), range(16), split_limit=256 * MIB)
    assert [request.places for request in halves] == [tuple(range(8)), tuple(range(8, 16))]
    assert [request.stop - request.start for request in halves] == [SPLIT_BYTES, SPLIT_BYTES] and len(
        halves
    ) == FEW_REQUESTS
    assert len(plan(layer(128), range(128), split_limit=256 * MIB)) == 1  # too long to be read from both ends


def test_a_layer_of_weight_and_bias_is_two_requests() -> None:
    far = 900 * MIB
    wanted: list[Span] = []
    for at in range(20):  # a reader that takes weight and bias in turn
        wanted += [
            Span("s", far + at * 4 * MIB, far + (at + 1) * 4 * MIB, NONE),
            Span("s", at * 40, at * 40 + 40, NONE),
        ]
    assert [request.places for request in plan(wanted, range(40), split_limit=2**40)] == [
        tuple(range(0, 40, 2)),
        tuple(range(1, 40, 2)),
    ]


def test_nothing_wanted_nothing_asked() -> None:
    assert plan([], [], split_limit=2**30) == []
