"""FP4 products: bytes by hand, the order of the sum replayed, slots against single matrices."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle import linear_fp4 as oracle
from oracle.blocks import encode_mxfp4, encode_nvfp4, unpack_e2m1
from oracle.formats import decode, encode
from tests.float_orders import fused

Run = Callable[..., SimpleNamespace]

test_contract_mx = contract_tests("linear_fp4_mx")
test_contract_nv = contract_tests("linear_fp4_nv")
test_contract_mx_selected = contract_tests("linear_fp4_mx_selected")
test_contract_nv_selected = contract_tests("linear_fp4_nv_selected")
test_contract_mx_gate_up = contract_tests("linear_fp4_mx_gate_up")
test_contract_nv_gate_up = contract_tests("linear_fp4_nv_gate_up")
test_contract_mx_down = contract_tests("linear_fp4_mx_down")
test_contract_nv_down = contract_tests("linear_fp4_nv_down")
test_speed_mx = speed_tests("linear_fp4_mx")
test_speed_nv = speed_tests("linear_fp4_nv")
test_speed_mx_selected = speed_tests("linear_fp4_mx_selected")
test_speed_nv_selected = speed_tests("linear_fp4_nv_selected")
test_speed_mx_gate_up = speed_tests("linear_fp4_mx_gate_up")
test_speed_nv_gate_up = speed_tests("linear_fp4_nv_gate_up")
test_speed_mx_down = speed_tests("linear_fp4_mx_down")
test_speed_nv_down = speed_tests("linear_fp4_nv_down")

KINDS = ("mx", "nv")
GROUP = {"mx": 32, "nv": 16}


def activations(tokens: int, width: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return dict(
        x=encode(rng.normal(0, 60, (tokens, width)), "e4m3"),
        x_scales=np.ldexp(1.0, rng.integers(-9, -4, (tokens, width // 128))).astype(np.float32),
    )


def weights(kind: str, *shape: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Random codes and scales; shape is [N, K], or [E, N, K] for a slab of experts."""
    rng = np.random.default_rng(seed)
    *rows, width = shape
    made = dict(codes=rng.integers(0, 256, (*rows, width // 2)).astype(np.uint8))
    scale_shape = (*rows, width // GROUP[kind])
    if kind == "mx":
        return made | dict(scales=rng.integers(119, 123, scale_shape).astype(np.uint8))
    experts = shape[0] if len(shape) == 3 else 1
    return made | dict(
        scales=rng.integers(40, 70, scale_shape).astype(np.uint8),
        scale2=rng.uniform(1, 2, experts).astype(np.float32) / 4096,
    )


def in_kernel_order(kind: str, w: dict[str, np.ndarray], a: dict[str, np.ndarray]) -> np.ndarray:
    """The float32 sums, one addition after the other, as the source describes them.

    A product of the tensor core adds exactly and rounds once, which is what it does on the host.
    """
    (tokens, width), rows = a["x"].shape, len(w["codes"])
    chunks, columns = width // 128, 128 // GROUP[kind]
    parts = min(8, chunks)
    codes = decode(unpack_e2m1(w["codes"]), "e2m1").reshape(1, rows, chunks, columns, -1, 4)
    x = decode(a["x"], "e4m3").reshape(tokens, 1, chunks, columns, -1, 4)
    scales = decode(w["scales"], "ue8m0" if kind == "mx" else "e4m3").astype(np.float32)
    scales = scales.reshape(1, rows, chunks, columns)
    groups = np.zeros((tokens, rows, chunks, columns), np.float32)
    for j in range(codes.shape[4]):
        groups = (groups + (codes[..., j, :] * x[..., j, :]).sum(axis=-1)).astype(np.float32)
    groups = groups * a["x_scales"][:, None, :, None]
    sums = np.zeros((tokens, rows, parts, columns), np.float32)
    for chunk in range(chunks):
        part = chunk % parts
        sums[:, :, part] = fused(groups[:, :, chunk], scales[:, :, chunk], sums[:, :, part])
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    total = sums[:, :, 0, 0]
    for part in range(1, parts):
        total = total + sums[:, :, part, 0]
    return total * w["scale2"][0] if kind == "nv" else total


# ------------------------------------------------------------------ the oracle


def test_a_product_of_two_bytes_by_hand() -> None:
    # Byte 0x2B holds 0xB = -1.5 in the even place and 0x2 = 1 in the odd one; scale byte 0x79 is
    # 2^-6. Activations: 1.0 (0x38) at 0, 2.0 (0x40) at 1, scale 1/2.
    codes, scales = np.zeros((1, 64), np.uint8), np.full((1, 4), 0x79, np.uint8)
    codes[0, 0] = 0x2B
    x, x_scales = np.zeros((1, 128), np.uint8), np.array([[0.5]])
    x[0, :2] = 0x38, 0x40
    value, magnitude = oracle.linear_fp4_mx(codes, scales, x, x_scales)
    assert value[0, 0] == (-1.5 * 1.0 + 1.0 * 2.0) * 2.0**-6 * 0.5
    assert magnitude[0, 0] == (1.5 * 1.0 + 1.0 * 2.0) * 2.0**-6 * 0.5


def test_an_nvfp4_scale_by_hand(run: Run) -> None:
    # Scale byte 0x50 is 8, scale2 2^-12: together 2^-9, the MXFP4 byte 118.
    w = weights("mx", 5, 256)
    a = activations(2, 256)
    nv_scales = np.full((5, 16), 0x50, np.uint8)
    mx_scales = np.full((5, 8), 118, np.uint8)
    nv = oracle.linear_fp4_nv(w["codes"], nv_scales, np.array([2.0**-12]), **a)
    mx = oracle.linear_fp4_mx(w["codes"], mx_scales, **a)
    assert np.array_equal(nv.value, mx.value)
    common = dict(T=2, N=5, K=256, codes=w["codes"], **a)
    got_nv = run("linear_fp4_nv", scales=nv_scales, scale2=2.0**-12, **common).y
    got_mx = run("linear_fp4_mx", scales=mx_scales, **common).y
    assert np.allclose(got_nv, got_mx, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_agrees_with_plain_loops(kind: str) -> None:
    grid = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    w, a = weights(kind, 3, 128), activations(2, 128)
    value = getattr(oracle, f"linear_fp4_{kind}")(**w, **a).value
    for t in range(2):
        for n in range(3):
            total = 0.0
            for k in range(128):
                byte = int(w["codes"][n, k // 2])
                code = byte >> 4 if k % 2 else byte & 15
                weight = grid[code & 7] * (-1 if code & 8 else 1)
                scale = int(w["scales"][n, k // GROUP[kind]])
                weight *= 2.0 ** (scale - 127) if kind == "mx" else decode_e4m3(scale)
                total += weight * decode_e4m3(int(a["x"][t, k])) * float(a["x_scales"][t, 0])
            total *= float(w["scale2"][0]) if kind == "nv" else 1.0
            assert np.isclose(value[t, n], total, rtol=1e-12)


def decode_e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte & 0x80 else value


@pytest.mark.parametrize("kind", KINDS)
def test_encoded_weights_are_off_by_half_a_step_of_their_group(kind: str) -> None:
    # The widest step of the grid, from 4 to 6, is 2; half of it times the scale bounds a weight's
    # rounding, and a scale of NVFP4, rounded itself, may cut the largest weight by 1/16 of 6 more.
    rng = np.random.default_rng(4)
    dense, a = rng.standard_normal((4, 256)), activations(2, 256)
    if kind == "mx":
        codes, scales = encode_mxfp4(dense)
        value = oracle.linear_fp4_mx(codes, scales, **a).value
        step = decode(scales, "ue8m0")
    else:
        codes, scales, scale2 = encode_nvfp4(dense)
        value = oracle.linear_fp4_nv(codes, scales, np.array([float(scale2)]), **a).value
        step = decode(scales, "e4m3") * float(scale2)
    x = decode(a["x"], "e4m3") * a["x_scales"].repeat(128, axis=1)
    bound = 1.4 * np.abs(x) @ step.repeat(GROUP[kind], axis=1).T
    assert (np.abs(value - x @ dense.T) <= bound).all()


# ------------------------------------------------------------------ the kernels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "rows", "width"), [(1, 5, 128), (2, 33, 1152), (1, 40, 4096), (9, 3, 896)]
)
def test_float32_sums_follow_the_written_order_where_a_product_rounds_once(
    kind: str, tokens: int, rows: int, width: int
) -> None:
    w, a = weights(kind, rows, width), activations(tokens, width)
    a["x"][0, ::3] = 0x01  # groups that span more than 24 bits
    sizes = dict(T=tokens, N=rows, K=width)
    got = run_kernel(f"linear_fp4_{kind}", HostDevice(), **sizes, **w, **a).y
    assert encode(got, "f32").tobytes() == in_kernel_order(kind, w, a).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_fit_24_bits_are_exact(kind: str, run: Run) -> None:
    # One group of K is not zero: its sum is exact, and every factor after it a power of two.
    rng = np.random.default_rng(3)
    group = GROUP[kind]
    w, a = weights(kind, 37, 512), activations(3, 512)
    a["x"] = encode(rng.integers(-15, 16, (3, 512)).astype(np.float64), "e4m3")
    a["x"][:, : 7 * group] = 0
    a["x"][:, 8 * group :] = 0
    if kind == "nv":
        w["scales"] = np.full_like(w["scales"], 0x48)
        w["scale2"] = np.array([2.0**-12], np.float32)
    got = run(f"linear_fp4_{kind}", T=3, N=37, K=512, **w, **a).y
    assert np.array_equal(got, getattr(oracle, f"linear_fp4_{kind}")(**w, **a).value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_times_every_activation_is_exact(kind: str, run: Run) -> None:
    # One product a row: 16 codes, and in row t the activation t - 128 alone.
    codes = np.zeros((16, 64), np.uint8)
    codes[:, 0] = np.arange(16)
    x = np.zeros((256, 128), np.uint8)
    x[:, 0] = np.arange(256)
    one = dict(mx=dict(scales=127), nv=dict(scales=0x38, scale2=1.0))[kind]
    got = run(
        f"linear_fp4_{kind}", T=256, N=16, K=128, codes=codes, x=x, x_scales=1.0,
        **{k: np.full((16, 128 // GROUP[kind]), v, np.uint8) if k == "scales" else v
           for k, v in one.items()},
    ).y  # fmt: skip
    expected = decode(np.arange(256, dtype=np.uint8), "e4m3")[:, None] * decode(
        np.arange(16, dtype=np.uint8), "e2m1"
    )
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(33, 640), (1100, 128), (7, 2176)])
def test_a_row_has_the_bytes_of_a_call_of_its_own(
    kind: str, rows: int, width: int, run: Run
) -> None:
    w, a = weights(kind, rows, width), activations(19, width)

    def product(rows_of_x: slice) -> np.ndarray:
        part = {name: array[rows_of_x].copy() for name, array in a.items()}
        return run(f"linear_fp4_{kind}", T=len(part["x"]), N=rows, K=width, **w, **part).y

    alone = [product(slice(t, t + 1)).tobytes() for t in range(19)]
    for tokens in (*range(2, 9), 19):
        assert [row.tobytes() for row in product(slice(0, tokens))] == alone[:tokens]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [1, 3])
def test_a_slot_has_the_bytes_of_its_expert_alone(kind: str, group: int, run: Run) -> None:
    experts, rows, width, slots = 4, 37, 1152, 6
    w, a = weights(kind, experts, rows, width), activations(slots // group, width)
    chosen = np.array([3, 0, 3, 1, 0, 3], np.int32)  # repeated within and across tokens
    sizes = dict(E=experts, N=rows, K=width, T=slots // group, S=slots)
    got = run(f"linear_fp4_{kind}_selected", **sizes, **w, ids=chosen, **a, group=group).y
    for slot, expert in enumerate(chosen):
        matrix = {
            name: array[expert : expert + 1] if name == "scale2" else array[expert]
            for name, array in w.items()
        }
        row = {n: v[slot // group : slot // group + 1].copy() for n, v in a.items()}
        alone = run(f"linear_fp4_{kind}", T=1, N=rows, K=width, **matrix, **row).y
        assert alone[0].tobytes() == got[slot].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_half_is_two_products_and_swiglu(kind: str, run: Run) -> None:
    gate, up = weights(kind, 4, 37, 640, seed=1), weights(kind, 4, 37, 640, seed=2)
    a, share = activations(2, 640), np.array([0.3, 1.0, 0.7, 0.2, 2.0, 0.5], np.float32)
    chosen = np.array([3, 0, 2, 1, 9, 0], np.int32)  # 9 is no expert
    sizes = dict(E=4, N=37, K=640, T=2, S=6, group=3, ids=chosen, **a)
    named = {f"gate_{n}": v for n, v in gate.items()} | {f"up_{n}": v for n, v in up.items()}
    got = run(f"linear_fp4_{kind}_gate_up", weights=share, limit=7.0, **named, **sizes).y
    halves = [
        run(f"linear_fp4_{kind}_selected", **w, **sizes).y.astype(np.float32) for w in (gate, up)
    ]
    apart = run(
        "swiglu_weighted", T=6, D=37, gate=halves[0], up=halves[1], weights=share, limit=7.0
    ).y
    assert got.tobytes() == apart.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_half_is_a_product_a_slot_and_an_ordered_sum(kind: str, run: Run) -> None:
    w, a = weights(kind, 4, 37, 1152), activations(6, 1152)
    chosen = np.array([[3, 0, 2], [1, 1, 0]], np.int32)
    order = np.array([[1, 2, 0], [2, 0, 1]], np.int32)
    shared = np.random.default_rng(2).standard_normal((2, 37)).astype(np.float32)
    rows = {n: v.reshape(2, 3, -1) for n, v in a.items()}
    got = run(
        f"linear_fp4_{kind}_down", E=4, N=37, K=1152, T=2, A=3, **w, ids=chosen, **rows,
        order=order, shared=shared,
    ).y  # fmt: skip
    slots = run(
        f"linear_fp4_{kind}_selected", E=4, N=37, K=1152, T=6, S=6, group=1, **w,
        ids=chosen.reshape(-1), **a,
    ).y  # fmt: skip
    contributions = slots.astype(np.float32).reshape(2, 3, 37)
    apart = run(
        "combine_shared", T=2, A=3, D=37, contributions=contributions, order=order, shared=shared
    ).y
    assert got.tobytes() == apart.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stray", [-1, 3, 2**31 - 1, -(2**31)])
def test_an_id_that_is_no_expert_gives_nan_and_reads_nothing(
    kind: str, stray: int, run: Run
) -> None:
    w, a = weights(kind, 3, 9, 256), activations(3, 256)
    chosen = np.array([1, stray, 2], np.int32)
    sizes = dict(E=3, N=9, K=256, T=3, S=3, group=1)
    got = run(f"linear_fp4_{kind}_selected", **sizes, **w, ids=chosen, **a).y
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


def test_scale_byte_0_is_a_power_of_two_and_255_is_nan(run: Run) -> None:
    codes, x = np.full((2, 64), 0x22, np.uint8), np.full((1, 128), 0x38, np.uint8)
    scales = np.array([[0] * 4, [0, 0, 255, 0]], np.uint8)
    y = run("linear_fp4_mx", T=1, N=2, K=128, codes=codes, scales=scales, x=x, x_scales=1.0).y
    assert y[0, 0] == 128 * 2.0**-127
    assert np.isnan(y[0, 1])


def test_the_low_nibble_is_the_even_element(run: Run) -> None:
    codes, x = np.zeros((1, 64), np.uint8), np.zeros((2, 128), np.uint8)
    codes[0, 5] = 0x72  # element 10 is 1, element 11 is 6
    x[0, 10], x[1, 11] = 0x38, 0x38
    common = dict(T=2, N=1, K=128, codes=codes, x=x, x_scales=1.0)
    y = run("linear_fp4_mx", scales=np.full((1, 4), 127, np.uint8), **common).y
    assert y.tolist() == [[1.0], [6.0]]


def test_sizes_that_do_not_belong_together_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="slot s has activation row"):
        run("linear_fp4_mx_selected", E=1, N=1, K=128, T=2, S=5, group=2, ids=0)
    with pytest.raises(SpecError, match="K/128 is 1/2, not whole"):
        run("linear_fp4_mx", T=1, N=1, K=64)


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_launches_on_poisoned_outputs_give_the_same_bytes(kind: str) -> None:
    w, a = weights(kind, 3, 37, 1152), activations(7, 1152)
    content: dict[str, Any] = dict(E=3, N=37, K=1152, T=7, S=7, group=1, **w, **a)
    content["ids"] = np.array([0, 1, 2, 2, 1, 0, 1], np.int32)
    device = HostDevice(workers=2)
    seen = {
        run_kernel(f"linear_fp4_{kind}_selected", device, **content).y.tobytes()
        for _ in range(1000)
    }
    assert len(seen) == 1
