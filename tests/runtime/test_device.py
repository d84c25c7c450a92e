"""Devices: the same calls on NumPy and on CuPy arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dsv4 import registry
from dsv4.errors import DeviceError, LaunchError
from dsv4.runtime.device import Device, cuda_problem, device_of, open_device
from dsv4.runtime.hostdevice import HostDevice, current_host_device, using
from dsv4.spec import BF16, F32
from lab import testing
from oracle.formats import decode, encode

CAST = registry.kernels()["cast_bf16"]


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each backend in turn."""
    yield testing.cuda() if request.param == "cuda" else HostDevice()


def test_a_copy_there_and_back_keeps_every_bit(device: Device) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    there = device.to_device(bits)
    assert isinstance(there, device.xp.ndarray)
    np.testing.assert_array_equal(device.to_numpy(there), bits)


def test_a_captured_launch_runs_on_replay_and_not_before(device: Device) -> None:
    x = device.to_device(np.linspace(-3, 3, 300, dtype=np.float32))
    y = device.empty((300,), BF16)
    y[...] = 0
    launch = CAST.prepare(x, out=y, device=device)
    launch.run()
    device.synchronize()
    eager = device.to_numpy(y)
    y[...] = 0
    device.synchronize()
    with device.capture() as graph:
        launch.run()
    device.synchronize()
    assert not device.to_numpy(y).any()
    graph.replay()
    device.synchronize()
    np.testing.assert_array_equal(device.to_numpy(y), eager)


def test_a_graph_replays_what_its_inputs_hold_then(device: Device) -> None:
    x, y = device.to_device(np.zeros(7, np.float32)), device.empty((7,), BF16)
    with device.capture() as graph:
        CAST.prepare(x, out=y, device=device).run()
    x[...] = 1.5
    device.synchronize()
    graph.replay()
    device.synchronize()
    assert (device.to_numpy(y) == encode(1.5, "bf16")).all()


def test_the_library_gemm_multiplies_rows_by_weights(device: Device) -> None:
    rng = np.random.default_rng(0)
    w, x = (
        encode(rng.standard_normal((48, 64)), "bf16"),
        encode(rng.standard_normal((5, 64)), "bf16"),
    )
    out = device.empty((5, 48), F32)
    device.gemm_bf16(device.to_device(w), device.to_device(x), out)
    exact = decode(x, "bf16") @ decode(w, "bf16").T
    magnitude = np.abs(decode(x, "bf16")) @ np.abs(decode(w, "bf16")).T
    # 64 products are exact in f32; any order of 63 additions and the store round at most 64 times.
    assert (np.abs(device.to_numpy(out) - exact) <= 64 * 2.0**-24 * magnitude).all()


@pytest.mark.gpu
def test_a_gemm_of_shapes_that_do_not_fit_is_refused() -> None:
    device = testing.cuda()
    w, x = device.empty((8, 16), BF16), device.empty((2, 12), BF16)
    with pytest.raises(LaunchError, match=r"w \[8, 16\], x \[2, 12\]"):
        device.gemm_bf16(w, x, device.empty((2, 8), F32))


def test_work_on_a_stream_is_done_when_it_closes(device: Device) -> None:
    x, y = device.to_device(np.ones(1000, np.float32)), device.empty((1000,), BF16)
    with device.stream():
        CAST(x, out=y, device=device)
    assert (device.to_numpy(y) == encode(1.0, "bf16")).all()


def test_times_are_positive_and_one_for_each_repeat(device: Device) -> None:
    x, y = device.to_device(np.ones(1000, np.float32)), device.empty((1000,), BF16)
    times = device.time_s(CAST.prepare(x, out=y, device=device).run, 5)
    assert len(times) == 5
    assert all(t > 0 for t in times)


def test_an_array_says_which_device_it_is_on(device: Device) -> None:
    assert device_of(device.to_device(np.ones(3))).backend == device.backend
    with pytest.raises(DeviceError, match=r"builtins\.list"):
        device_of([1.0])


def test_using_changes_the_host_device_and_puts_it_back() -> None:
    before = current_host_device()
    with using(HostDevice(mode="shuffle", seed=4)) as device:
        assert current_host_device() is device
    assert current_host_device() is before


def test_shuffle_mode_poisons_outputs() -> None:
    y = np.zeros(4, np.uint16)
    prepared = CAST.prepare(np.ones(4, np.float32), out=y, device=HostDevice(mode="shuffle"))
    prepared.run()
    assert (y == encode(1.0, "bf16")).all()


@pytest.mark.parametrize(
    ("backend", "mode", "words"), [("gpu", "run", "'gpu'"), ("host", "fast", "'fast'")]
)
def test_an_unknown_backend_or_mode_is_refused(backend: str, mode: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        open_device(backend, mode=mode)


def test_auto_is_the_gpu_where_there_is_one() -> None:
    expected = "host" if cuda_problem() else "cuda"
    assert open_device("auto").backend == expected


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_refused_with_the_count() -> None:
    testing.cuda()
    with pytest.raises(DeviceError, match="device 99 was asked for"):
        open_device("cuda", index=99)
