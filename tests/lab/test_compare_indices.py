"""Index outputs and stability: overlap and regret on paper, and bytes that must repeat."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import SpecError
from lab.compare.indices import compare_indices
from lab.compare.stability import over_pieces, over_relaunches


def ids(*rows):
    return np.array(rows, np.int32)


def test_the_same_ids_in_another_order_are_the_same_set_but_not_exact():
    d = compare_indices(ids([1, 2, 3], [4, 5, 6]), ids([3, 1, 2], [4, 5, 6]))
    assert (d.rows, d.exact, d.same_set, d.jaccard_min) == (2, 1, 2, 1.0)


def test_overlap_and_regret_on_paper():
    # {0,1,2} against {0,1,3}: 2 of 4. Scores 5 4 1 3: chosen 10, best 12, largest 5.
    scores = np.array([[5.0, 4.0, 1.0, 3.0]])
    d = compare_indices(ids([0, 1, 2]), ids([0, 1, 3]), scores)
    assert d.jaccard_mean == d.jaccard_min == 0.5
    assert d.regret_max == pytest.approx(2 / 5)


def test_a_choice_among_equals_has_no_regret():
    scores = np.array([[1.0, 1.0, 1.0, 0.0]])
    d = compare_indices(ids([0, 2]), ids([0, 1]), scores)
    assert d.exact == 0 and d.regret_max == 0.0


def test_none_is_not_an_id_and_repeats_and_strays_are_counted():
    scores = np.zeros((1, 4))
    d = compare_indices(ids([0, 0, 9, -1]), ids([0, 1, -1, -1]), scores)
    assert (d.repeated, d.invalid) == (1, 1)
    assert d.jaccard_min == 0.5  # {0} against {0, 1}
    empty = compare_indices(ids([-1, -1]), ids([-1, -1]))
    assert empty.jaccard_min == 1.0 and empty.exact == 1


def test_a_repeated_id_does_not_hide_its_regret():
    scores = np.array([[5.0, 4.0, 0.0]])
    d = compare_indices(ids([0, 0]), ids([0, 1]), scores)
    assert d.regret_max == pytest.approx(4 / 5)


def test_infinite_scores_do_not_poison_the_regret():
    scores = np.array([[np.inf, 2.0, -np.inf]])
    assert compare_indices(ids([0, 2]), ids([0, 1]), scores).regret_max == 1.0


def test_misfitting_ids_are_refused():
    with pytest.raises(SpecError, match=r"got \[1, 2\], reference \[1, 3\]"):
        compare_indices(ids([0, 1]), ids([0, 1, 2]))
    with pytest.raises(SpecError, match=r"scores \[2, 4\]"):
        compare_indices(ids([0, 1]), ids([0, 1]), np.zeros((2, 4)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 8), n=st.integers(8, 20))
def test_jaccard_agrees_with_sets(seed, k, n):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-2, n, (6, k)), rng.integers(-2, n, (6, k))
    expected = []
    for x, y in zip(a, b, strict=True):
        one, two = {v for v in x if v >= 0}, {v for v in y if v >= 0}
        expected.append(len(one & two) / len(one | two) if one | two else 1.0)
    d = compare_indices(a, b, rng.standard_normal((6, n)))
    assert d.jaccard_mean == pytest.approx(np.mean(expected))
    assert d.jaccard_min == pytest.approx(min(expected))
    assert d.repeated == sum(
        len([v for v in x if v >= 0]) - len({v for v in x if v >= 0}) for x in a
    )


def test_relaunches_are_stable_when_every_byte_repeats():
    y = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    y[0, 0] = np.nan
    s = over_relaunches([y, y.copy(), y.copy()])
    assert s.stable and (s.same, s.tries, s.changed, s.first) == (3, 3, 0, None)


def test_right_the_first_time_only_is_caught_with_try_and_place():
    y = np.zeros((4, 5), np.float32)
    late = y.copy()
    late[2, 1], late[3, 3] = 1.0, -0.0
    s = over_relaunches([y, y, late])
    assert not s.stable
    assert (s.same, s.tries, s.changed, s.first) == (2, 3, 2, (2, 11))


def test_nan_payloads_count_as_changes():
    quiet = np.array([0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert not over_relaunches([quiet, other]).stable


def test_rows_alone_must_have_the_bytes_of_the_batch():
    whole = np.arange(12, dtype=np.uint16).reshape(3, 4)
    rows = [whole[i : i + 1].copy() for i in range(3)]
    assert over_pieces(whole, rows, axis=0).stable
    rows[1][0, 2] ^= 1
    s = over_pieces(whole, rows, axis=0)
    assert s.first == (1, 6) and s.changed == 1
    assert over_pieces(whole, [whole[:, :3], whole[:, 3:]], axis=1).stable


def test_pieces_and_tries_that_do_not_fit_are_refused():
    whole = np.zeros((3, 4))
    with pytest.raises(SpecError, match=r"pieces make \[2, 4\], whole \[3, 4\]"):
        over_pieces(whole, [whole[:2]], axis=0)
    with pytest.raises(SpecError, match="at least one output"):
        over_relaunches([])
    with pytest.raises(SpecError, match="one shape and type"):
        over_relaunches([whole, whole[:2]])
