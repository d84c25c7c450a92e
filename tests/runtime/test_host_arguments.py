"""What a host launch refuses before anything runs."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.runtime.host import HostModule, build

KERNELS = Path(__file__).parent / "kernels"


def scale_module() -> HostModule:
    return build(KERNELS / "scale.cu", defines={})


@pytest.mark.parametrize(
    ("position", "wrong", "complaint"),
    [
        (0, np.zeros(8), "argument 0 is declared const float32\\*.*float64"),
        (0, [1.0, 2.0], "list, not a NumPy array"),
        (1, np.broadcast_to(np.float32(1), 8), "read-only"),
        (2, 8, "int, not a NumPy scalar"),
        (2, np.int64(8), "a NumPy scalar of int64"),
        (3, np.float32(8), "pass np.float64"),
        (4, np.zeros(1, np.int16), "an array of int16"),
        (4, np.zeros(1, ">u2"), "an array of >u2"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(
    position: int, wrong: object, complaint: str
) -> None:
    args: list[object] = [
        np.zeros(8, np.float32),
        np.zeros(8, np.float32),
        np.int32(8),
        np.float64(1),
        np.zeros(1, np.uint16),
    ]
    args[position] = wrong
    with pytest.raises(LaunchError, match=f"(?s){complaint}"):
        scale_module().launch("scale", grid=(1, 1, 1), block=(64, 1, 1), args=args)


@pytest.mark.parametrize(
    "sizes",
    [
        {"grid": (0, 1, 1), "block": (64, 1, 1)},
        {"grid": (1, 1, 1), "block": (64, 32, 1)},
        {"grid": (1, 1, 1), "block": (64, 1, 1), "shared_bytes": 300_000},
    ],
)
def test_a_launch_that_no_device_could_run_is_refused(sizes: dict[str, object]) -> None:
    args = [np.zeros(8, np.float32)] * 2 + [np.int32(8), np.float64(1), np.zeros(1, np.uint16)]
    with pytest.raises(LaunchError, match="not possible"):
        scale_module().launch("scale", args=args, **sizes)


def test_wrong_count_and_unknown_name_are_refused() -> None:
    module = scale_module()
    with pytest.raises(LaunchError, match="takes 5 arguments"):
        module.launch("scale", grid=(1, 1, 1), block=(64, 1, 1), args=[])
    with pytest.raises(LaunchError, match="no such kernel"):
        module.launch("scales", grid=(1, 1, 1), block=(64, 1, 1), args=[])
