"""What a raw launch would silently get wrong is refused before the device sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsv4.axes import Shape
from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import geometry_of, prepare
from dsv4.spec import (
    BF16,
    F32,
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    Kernel,
    Option,
    Out,
    Require,
    Scalar,
    Stride,
    Ulp,
    Work,
    kernel,
)


def declared(**changes: Any) -> Kernel:
    """A declaration with every kind of argument; its source is never built here."""
    settings: dict[str, Any] = dict(
        name="cast_demo",
        family="cast",
        summary="for tests",
        args=[
            In("x", F32, "T K", strided=True, align=16),
            In("w", BF16, "K/2"),
            Out("y", F32, "T K"),
            Dim("T"),
            Stride("x_stride", of="x"),
            Scalar("eps", F32),
            Scalar("slot", I32),
        ],
        options=(Option("group", (64, 128)),),
        requires=(Require("K % 4 == 0", "vector loads take four elements"),),
        geometry=lambda s: Geometry(grid=s.T, block=128),
        contract=dict(y=Ulp(1.0, because="test")),
        work=lambda s: Work(read=s.T * s.K * 4, write=s.T * s.K * 4),
    )
    settings.update(changes)
    return kernel(**settings)


class Recording(HostDevice):
    """A host device that keeps what would be launched."""

    def bind(self, spec: Any, constants: Any, geometry: Any, values: Any) -> Any:
        self.bound = (geometry, list(values))
        return lambda: None


def arrays(t: int = 3, k: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs and output of the declaration."""
    return np.ones((t, k), np.float32), np.ones(k // 2, np.uint16), np.empty((t, k), np.float32)


def call(x: Any, w: Any, y: Any, **named: Any) -> Recording:
    device = Recording()
    prepare(declared().spec, x, w, y=y, device=device, **{"eps": 1e-6, "slot": 0, **named})
    return device


def test_values_arrive_in_declared_order_with_declared_types() -> None:
    x, w, y = arrays()
    geometry, values = call(x, w, y).bound
    assert geometry.grid == (3, 1, 1)
    assert values[0] is x and values[1] is w and values[2] is y
    assert [v.dtype.str for v in values[3:]] == ["<i4", "<i8", "<f4", "<i4"]
    assert values[4] == 8


def test_a_free_row_stride_is_passed_in_elements() -> None:
    wide = np.ones((3, 20), np.float32)
    _, w, y = arrays()
    _, values = call(wide[:, :8], w, y).bound
    assert values[4] == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(x=np.ones((3, 8), np.float64)), "argument x has dtype float64"),
        (dict(x=np.ones(8, np.float32)), r"argument x has shape \[8\]"),
        (dict(y=np.ones((3, 4), np.float32)), "argument y has 4 along axis K"),
        (dict(w=np.ones(5, np.uint16)), r"argument w has shape \[5\]"),
        (dict(y=np.ones((8, 3), np.float32).T), "strides"),
        (dict(x=np.ones((3, 9), np.float32)[:, 1:]), "over a multiple of 16 bytes|rows 36 bytes"),
        (dict(x=[[1.0] * 8] * 3), "argument x is a builtins.list"),
        (dict(group=32), "option group is 32"),
        (dict(bogus=1), "unknown keyword bogus"),
        (dict(slot=2**40), "slot is 1099511627776"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, Any], message: str) -> None:
    x, w, y = arrays()
    given = {"x": x, "w": w, "y": y, **change}
    with pytest.raises(LaunchError, match=message) as caught:
        call(given.pop("x"), given.pop("w"), given.pop("y"), **given)
    assert "declared in dsv4/kernels/test_launch.py" in str(caught.value)
    assert "called from" in str(caught.value)


def test_a_missing_scalar_or_array_is_named() -> None:
    x, w, y = arrays()
    with pytest.raises(LaunchError, match="scalar eps is missing"):
        prepare(declared().spec, x, w, y=y, device=Recording(), slot=0)
    with pytest.raises(LaunchError, match="array y not passed"):
        prepare(declared().spec, x, w, device=Recording(), eps=1.0, slot=0)


def test_too_many_positional_arrays_are_refused() -> None:
    x, w, y = arrays()
    with pytest.raises(LaunchError, match="3 arrays passed by position"):
        prepare(declared().spec, x, w, y, device=Recording(), eps=1.0, slot=0)


def test_a_required_condition_is_refused_with_its_reason() -> None:
    x, w, y = arrays(k=6)
    with pytest.raises(LaunchError, match="vector loads take four elements"):
        call(x, w, y)


def test_an_empty_array_is_refused() -> None:
    with pytest.raises(LaunchError, match="empty"):
        call(np.ones((0, 8), np.float32), np.ones(4, np.uint16), np.empty((0, 8), np.float32))


def test_rows_of_an_output_that_overlap_are_refused() -> None:
    spec = declared(
        args=[
            In("x", F32, "T K"),
            Out("y", F32, "T K", strided=True),
            Stride("y_stride", of="y"),
        ],
        options=(),
    ).spec
    x = np.ones((3, 8), np.float32)
    y = np.lib.stride_tricks.as_strided(np.empty(24, np.float32), (3, 8), (16, 4))
    with pytest.raises(LaunchError, match="must not overlap"):
        prepare(spec, x, y=y, device=Recording())


def test_a_grid_past_the_hardware_limit_is_refused() -> None:
    spec = declared(geometry=lambda s: Geometry(grid=(1, s.T), block=128)).spec
    with pytest.raises(LaunchError, match="grid y is 70000"):
        geometry_of(spec, Shape({"T": 70000}))


def test_a_declaration_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(SpecError, match="exactly one contract"):
        declared(contract=dict(z=Exact(because="no such output")))
    with pytest.raises(SpecError, match="declared twice"):
        declared(args=[In("x", F32, "T"), Out("x", F32, "T")], contract=dict(x=Ulp(1, "t")))
    with pytest.raises(SpecError, match="names start with their family"):
        declared(name="other")


def test_a_mixed_call_names_the_device_it_runs_on() -> None:
    class Foreign:
        shape = (4,)

    x, _, y = arrays()
    with pytest.raises(LaunchError, match="takes numpy.ndarray"):
        call(x, Foreign(), y)
