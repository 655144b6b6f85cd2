"""Every wanted byte is asked for once, the waste is bounded, the order is kept, and requests are few."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.remote.fetch import MOST, SPLIT_BYTES, WASTE_BYTES, WASTE_SHARE, RangeRequest, plan
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
    runs = plan(wanted, places, longest=256 * MIB)
    # every wanted block is brought once, inside its request
    assert sorted(place for run in runs for place in run.places) == places
    for run in runs:
        assert run.start == wanted[run.places[0]].start and run.stop == wanted[run.places[-1]].stop
        for place in run.places:
            assert wanted[place].name == run.name and run.start <= wanted[place].start < wanted[place].stop <= run.stop
        # the order of the reader is the order in the file
        assert list(run.places) == sorted(run.places)
        assert all(wanted[a].stop <= wanted[b].start for a, b in pairwise(run.places))
    assert [run.places[0] for run in runs] == sorted(run.places[0] for run in runs)
    for name in {run.name for run in runs}:
        mine = [run for run in runs if run.name == name]
        need = sum(wanted[place].stop - wanted[place].start for run in mine for place in run.places)
        asked = sum(run.stop - run.start for run in mine)
        assert asked - need <= max(WASTE_BYTES, WASTE_SHARE * need)
        assert asked - need <= WASTE_SHARE * need or len(mine) >= MOST


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
    expected = min(fewest(share), max(MOST, fewest(max(share, WASTE_BYTES))))
    assert len(plan(wanted, range(len(wanted)), longest=0)) == expected


def test_a_layer_of_one_tensor_is_one_request_or_two() -> None:
    def layer(count: int) -> list[Span]:
        return [Span("raw-00", at * 4 * MIB, (at + 1) * 4 * MIB, NONE) for at in range(count)]

    assert plan(layer(15), range(15), longest=256 * MIB) == [RangeRequest("raw-00", 0, 60 * MIB, tuple(range(15)))]
    halves = plan(layer(16), range(16), longest=256 * MIB)
    assert [run.places for run in halves] == [tuple(range(8)), tuple(range(8, 16))]
    assert [run.stop - run.start for run in halves] == [SPLIT_BYTES, SPLIT_BYTES] and len(halves) == MOST
    assert len(plan(layer(128), range(128), longest=256 * MIB)) == 1  # too long to be read from both ends


def test_a_layer_of_weight_and_bias_is_two_requests() -> None:
    far = 900 * MIB
    wanted: list[Span] = []
    for at in range(20):  # a reader that takes weight and bias in turn
        wanted += [
            Span("s", far + at * 4 * MIB, far + (at + 1) * 4 * MIB, NONE),
            Span("s", at * 40, at * 40 + 40, NONE),
        ]
    assert [run.places for run in plan(wanted, range(40), longest=2**40)] == [
        tuple(range(0, 40, 2)),
        tuple(range(1, 40, 2)),
    ]


def test_nothing_wanted_nothing_asked() -> None:
    assert plan([], [], longest=2**30) == []
