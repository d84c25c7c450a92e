"""Axis expressions: how declarations write shapes."""

import pytest

from dsv4.axes import Shape, evaluate, is_name
from dsv4.errors import SpecError


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("K", {"K": 7}, 7),
        ("K/2", {"K": 8}, 4),
        ("ceil(N/128)", {"N": 129}, 2),
        ("ceil(N/128) * 2 + 1", {"N": 128}, 3),
        ("K // 16", {"K": 33}, 2),
        ("min(M, 8) + max(M, 8)", {"M": 3}, 11),
    ],
)
def test_an_expression_has_one_whole_value(
    text: str, values: dict[str, int], expected: int
) -> None:
    assert evaluate(text, values) == expected


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("K % 16 == 0", True),
        ("K > 32", False),
        ("K >= 32 and M <= 8", True),
        ("K < 3 or M != 8", False),
    ],
)
def test_a_condition_is_true_or_false(text: str, holds: bool) -> None:
    assert evaluate(text, {"K": 32, "M": 8}) is holds


def test_a_division_that_leaves_a_remainder_is_refused_with_its_value() -> None:
    with pytest.raises(SpecError, match="K/2 is 7/2, not whole"):
        evaluate("K/2", {"K": 7})


def test_an_unbound_name_is_refused_with_the_bound_ones() -> None:
    with pytest.raises(SpecError, match="Q is not bound"):
        evaluate("Q", {"K": 7})


@pytest.mark.parametrize("text", ["__import__('os')", "K ** 2", "K[0]", "K if K else 2", "1 +"])
def test_anything_beyond_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        evaluate(text, {"K": 7})


def test_a_shape_reads_as_attributes_and_prints_its_axes() -> None:
    shape = Shape({"T": 7, "D": 4096})
    assert (shape.T, shape["D"], len(shape)) == (7, 4096, 2)
    assert repr(shape) == "T=7 D=4096"
    with pytest.raises(AttributeError, match="'K'"):
        _ = shape.K


def test_only_bare_names_bind_an_axis() -> None:
    assert is_name("K")
    assert not is_name("K/2")
