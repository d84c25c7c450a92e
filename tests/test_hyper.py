"""Hyper-connections: known values, fused against separate launches, what Sinkhorn leaves."""

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.cases.hyper import KNOWN_BASE, KNOWN_MIX, KNOWN_SCALE
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle.hyper_error import EXP, sinkhorn_error

Run = Callable[..., SimpleNamespace]

test_contract_norm_scale = contract_tests("hyper_norm_scale")
test_contract_norm_scale_f32 = contract_tests("hyper_norm_scale_f32")
test_contract_split = contract_tests("hyper_split")
test_contract_head_gate = contract_tests("hyper_head_gate")
test_contract_collapse = contract_tests("hyper_collapse")
test_contract_post = contract_tests("hyper_post")
test_contract_pre = contract_tests("hyper_pre")
test_contract_pre_f32 = contract_tests("hyper_pre_f32")
test_contract_post_pre_norm = contract_tests("hyper_post_pre_norm")
test_contract_post_pre_norm_f32 = contract_tests("hyper_post_pre_norm_f32")
test_speed_norm_scale = speed_tests("hyper_norm_scale")
test_speed_norm_scale_f32 = speed_tests("hyper_norm_scale_f32")
test_speed_split = speed_tests("hyper_split")
test_speed_head_gate = speed_tests("hyper_head_gate")
test_speed_collapse = speed_tests("hyper_collapse")
test_speed_post = speed_tests("hyper_post")
test_speed_pre = speed_tests("hyper_pre")
test_speed_pre_f32 = speed_tests("hyper_pre_f32")
test_speed_post_pre_norm = speed_tests("hyper_post_pre_norm")
test_speed_post_pre_norm_f32 = speed_tests("hyper_post_pre_norm_f32")

EPS = 1e-6
KNOWN_PRE = [0.562177501, 0.320822301, 0.610640234, 0.689975481]
KNOWN_POST = [0.851114966, 1.336375544, 1.604367777, 0.166345393]
KNOWN_FIRST = [
    [0.330174036, 0.038278398, 0.009030762, 0.628789986],
    [0.647137684, 0.336232471, 0.079320563, 0.129897277],
    [0.006290830, 0.622721629, 0.100966967, 0.240576747],
    [0.016395953, 0.002766453, 0.810680886, 0.000735131],
]
KNOWN_COMB = [
    [0.346858856, 0.036150526, 0.003238053, 0.615250731],
    [0.590380085, 0.275756436, 0.024698492, 0.110375252],
    [0.007638360, 0.679731000, 0.041842833, 0.272071112],
    [0.055121699, 0.008361037, 0.930219627, 0.002301903],
]
KNOWN_STREAMS = [[1, 2], [3, -1], [0.5, 4], [-2, 0.25]]

on_host = functools.partial(run_kernel, device=HostDevice())


def f32(content: Any, *shape: int) -> np.ndarray:
    return np.ascontiguousarray(np.array(content, np.float32).reshape(shape))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def known_split(run: Run, iterations: int) -> SimpleNamespace:
    return run(
        "hyper_split",
        T=1,
        M=4,
        mix=f32(KNOWN_MIX, 1, 24),
        scale=f32(KNOWN_SCALE, 3),
        base=f32(KNOWN_BASE, 24),
        eps=EPS,
        iterations=iterations,
    )


def split(mix: np.ndarray, streams: int) -> SimpleNamespace:
    return on_host("hyper_split", T=len(mix), M=streams, mix=mix, scale=1.0, base=0.0, eps=EPS)


# ------------------------------------------------------------------ known values


def test_split_gives_the_known_coefficients(run: Run) -> None:
    got = known_split(run, 20)
    assert np.allclose(got.pre[0], KNOWN_PRE, atol=2e-7)
    assert np.allclose(got.post[0], KNOWN_POST, atol=2e-7)
    assert np.allclose(got.comb[0], KNOWN_COMB, atol=1e-6)


def test_one_iteration_is_softmax_then_columns(run: Run) -> None:
    assert np.allclose(known_split(run, 1).comb[0], KNOWN_FIRST, atol=2e-7)


def test_known_collapse_and_post(run: Run) -> None:
    x = f32(KNOWN_STREAMS, 1, 4, 2)
    y = run("hyper_collapse", T=1, M=4, D=2, x=x, pre=f32(KNOWN_PRE, 1, 4)).y
    assert np.allclose(y, [[0.450013558, 3.418587507]], atol=1e-6)
    out = run(
        "hyper_post", T=1, M=4, D=2, z=f32([10, -10], 1, 2), x=x, post=f32(KNOWN_POST, 1, 4),
        comb=f32(KNOWN_COMB, 1, 4, 4),
    ).out  # fmt: skip
    expected = [
        [10.522724556, -8.363478173],
        [14.550318702, -10.846196567],
        [14.281493463, -15.661973918],
        [2.741262167, 0.545532204],
    ]
    assert np.allclose(out[0], expected, atol=2e-6)


def test_comb_is_summed_over_its_first_index(run: Run) -> None:
    comb = np.zeros((1, 3, 3), np.float32)
    comb[0, 2, 0] = 1.0  # source 2 goes to target 0
    x = f32([1, 2, 4], 1, 3, 1)
    out = run("hyper_post", T=1, M=3, D=1, z=0.0, x=x, post=0.0, comb=comb).out
    assert out.tolist() == [[[4.0], [0.0], [0.0]]]


def test_post_has_no_eps_and_pre_no_factor(run: Run) -> None:
    got = run("hyper_split", T=1, M=2, mix=0.0, scale=1.0, base=0.0, eps=0.25)
    assert got.pre.tolist() == [[0.75, 0.75]]
    assert got.post.tolist() == [[1.0, 1.0]]


def test_gates_far_below_zero_are_subnormal_and_not_zero(run: Run) -> None:
    # 2 sigmoid(-100) = 7.44e-44, 53 steps of the smallest float; 1 / (1 + e^100) would be 0.
    base = np.full(8, -100.0, np.float32)
    post = run("hyper_split", T=1, M=2, mix=0.0, scale=1.0, base=base, eps=EPS).post
    assert (np.abs(post / 2.0**-149 - 53.09) < 2).all()


# ------------------------------------------------------------------ what Sinkhorn leaves

mixes = st.integers(1, 8).flatmap(
    lambda m: st.lists(
        st.floats(-60, 60, width=32), min_size=(2 + m) * m, max_size=(2 + m) * m
    ).map(lambda row: (m, f32(row, 1, (2 + m) * m)))
)


@settings(deadline=None, max_examples=60)
@given(mixes)
def test_columns_sum_to_one(drawn: tuple[int, np.ndarray]) -> None:
    streams, mix = drawn
    comb = split(mix, streams).comb[0]
    assert (comb > 0).all()
    # A column is divided by its sum + eps, and its sum may be as small as streams * eps.
    before = comb.sum(axis=0)
    assert (before < 1 + 1e-6).all()
    ordinary = mix.reshape(-1)[2 * streams :].max() - mix.reshape(-1)[2 * streams :].min() < 8
    if ordinary:
        assert np.allclose(before, 1.0, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(mixes, st.randoms(use_true_random=False))
def test_renaming_the_streams_renames_the_coefficients(
    drawn: tuple[int, np.ndarray], random: Any
) -> None:
    streams, mix = drawn
    mix = mix / 8
    order = np.arange(streams)
    random.shuffle(order)
    matrix = mix[0, 2 * streams :].reshape(streams, streams)
    moved = np.concatenate(
        [mix[0, :streams][order], mix[0, streams : 2 * streams][order],
         matrix[np.ix_(order, order)].reshape(-1)]
    )  # fmt: skip
    plain, renamed = split(mix, streams), split(f32(moved, 1, moved.size), streams)
    assert renamed.pre.tobytes() == plain.pre[:, order].tobytes()
    assert renamed.post.tobytes() == plain.post[:, order].tobytes()
    assert np.allclose(renamed.comb[0], plain.comb[0][np.ix_(order, order)], rtol=1e-4, atol=1e-7)


def test_a_row_that_loses_every_target_keeps_eps_and_no_more(run: Run) -> None:
    # Source 1 is e^-80 of the others everywhere: only eps keeps it above zero in the first step.
    mix = np.zeros((1, 8), np.float32)
    mix[0, 4:] = [0, 0, -80, 0]
    first = run("hyper_split", T=1, M=2, mix=mix, scale=1.0, base=0.0, eps=EPS, iterations=1)
    # Softmax + eps = [[.5, .5], [0, 1]] + eps; the first column sums to .5 + 2 eps.
    assert np.isclose(first.comb[0, 1, 0], EPS / (0.5 + 3 * EPS), rtol=1e-5)
    later = run("hyper_split", T=1, M=2, mix=mix, scale=1.0, base=0.0, eps=EPS)
    assert np.allclose(later.comb[0].sum(axis=0), 1.0, atol=1e-5)


# ------------------------------------------------------------------ the bound of comb


def perturbed(logits: np.ndarray, iterations: int, spot: int, size: float) -> np.ndarray:
    """comb in double with one rounding, number `spot`, made off by `size`, relatively."""
    counter = iter(range(10**6))

    def off(values: np.ndarray) -> np.ndarray:
        result = values.copy()
        for index in np.ndindex(values.shape):
            if next(counter) == spot:
                result[index] *= 1.0 + size
        return result

    shifted = logits - logits.max(axis=1, keepdims=True)
    e = off(np.exp(shifted))
    c = off(e / off(e.sum(axis=1, keepdims=True)))
    c = off(c + EPS)
    for axis in (0, *(1, 0) * (iterations - 1)):
        c = off(c / off(c.sum(axis=axis, keepdims=True) + EPS))
    perturbed.spots = next(counter)  # type: ignore[attr-defined]
    return c


def weights_of_roundings(logits: np.ndarray, iterations: int) -> Iterator[float]:
    """How many u each of those roundings may be off, in the order in which they occur."""
    m = len(logits)
    shifted = logits - logits.max(axis=1, keepdims=True)
    yield from (np.abs(logits) + np.abs(shifted) + EXP).reshape(-1)
    yield from (m - 1.0,) * m
    yield from (1.0,) * (2 * m * m)
    for _ in range(2 * iterations - 1):
        yield from (float(m),) * m
        yield from (1.0,) * (m * m)


@pytest.mark.parametrize(("streams", "iterations"), [(2, 1), (2, 3), (3, 2), (4, 3)])
def test_the_error_bound_is_the_sum_of_every_single_rounding(streams: int, iterations: int) -> None:
    logits = np.random.default_rng(streams).normal(0, 2, (streams, streams))
    exact = perturbed(logits, iterations, -1, 0.0)
    expected = np.zeros_like(exact)
    size = 1e-7
    weights = list(weights_of_roundings(logits, iterations))
    assert len(weights) == perturbed.spots  # type: ignore[attr-defined]
    for spot, weight in enumerate(weights):
        moved = perturbed(logits, iterations, spot, size)
        expected += weight * np.abs(moved / exact - 1.0) / size
    got = sinkhorn_error(logits[None], np.abs(logits)[None], iterations=iterations, eps=EPS)[0]
    assert np.allclose(got, expected, rtol=1e-4)


# ------------------------------------------------------------------ rows, and fused launches


def arguments(tokens: int, streams: int, width: int) -> dict[str, Any]:
    mixes_count = (2 + streams) * streams
    rng = np.random.default_rng(tokens + 10 * streams + width)
    return dict(
        z=rng.standard_normal((tokens, width)).astype(np.float32),
        x=rng.standard_normal((tokens, streams, width)).astype(np.float32),
        post=rng.uniform(0, 2, (tokens, streams)).astype(np.float32),
        comb=rng.uniform(0, 0.5, (tokens, streams, streams)).astype(np.float32),
        fn=(rng.standard_normal((mixes_count, streams * width)) / np.sqrt(streams * width)).astype(
            np.float32
        ),
        scale=rng.normal(0.8, 0.3, 3).astype(np.float32),
        base=rng.normal(0, 0.5, mixes_count).astype(np.float32),
        gain=rng.normal(1, 0.1, width).astype(np.float32),
    )


SHAPES = [(1, 4, 4096), (3, 4, 264), (2, 1, 8), (5, 2, 256), (2, 3, 1032), (2, 5, 104), (1, 8, 520)]


def launch(run: Run, kernel: str, **content: Any) -> dict[str, np.ndarray]:
    """The outputs as float32 arrays, ready to be inputs of the next launch."""
    outputs = vars(run(kernel, **content))
    return {name: value.astype(np.float32) for name, value in outputs.items()}


@pytest.mark.parametrize("suffix", ["", "_f32"])
@pytest.mark.parametrize(("tokens", "streams", "width"), SHAPES)
def test_pre_has_the_bytes_of_norm_scale_split_and_collapse(
    tokens: int, streams: int, width: int, suffix: str, run: Run
) -> None:
    a = arguments(tokens, streams, width)
    sizes = dict(T=tokens, M=streams, D=width)
    mix = normal(tokens, (2 + streams) * streams, seed=3)
    gates = dict(scale=a["scale"], base=a["base"], eps=EPS)
    fused = launch(run, f"hyper_pre{suffix}", **sizes, x=a["x"], mix=mix, **gates, mix_eps=1e-5)
    scaled = launch(
        run, f"hyper_norm_scale{suffix}", **sizes, C=mix.shape[1], x=a["x"], mix=mix, mix_eps=1e-5
    )["mix"]
    separate = launch(run, "hyper_split", T=tokens, M=streams, mix=scaled, **gates)
    separate |= launch(run, "hyper_collapse", **sizes, x=a["x"], pre=separate["pre"])
    assert {n: v.tobytes() for n, v in fused.items()} == {
        n: v.tobytes() for n, v in separate.items()
    }


@pytest.mark.parametrize("suffix", ["", "_f32"])
@pytest.mark.parametrize(("tokens", "streams", "width"), SHAPES)
def test_post_pre_norm_has_the_bytes_of_six_launches(
    tokens: int, streams: int, width: int, suffix: str, run: Run
) -> None:
    a = arguments(tokens, streams, width)
    sizes = dict(T=tokens, M=streams, D=width)
    gates = dict(scale=a["scale"], base=a["base"], eps=EPS)
    fused = launch(
        run, f"hyper_post_pre_norm{suffix}", **sizes, **a, ticket=0, eps=EPS, mix_eps=1e-5,
        norm_eps=1e-4,
    )  # fmt: skip
    x = launch(run, "hyper_post", **sizes, z=a["z"], x=a["x"], post=a["post"], comb=a["comb"])[
        "out"
    ]
    flat = x.reshape(tokens, -1)
    rows, lanes = a["fn"].shape
    mix = launch(run, f"island_dots{suffix}", T=tokens, N=rows, K=lanes, x=flat, w=a["fn"])["y"]
    mix = launch(run, f"hyper_norm_scale{suffix}", **sizes, C=rows, x=x, mix=mix, mix_eps=1e-5)[
        "mix"
    ]
    next_block = launch(run, "hyper_split", T=tokens, M=streams, mix=mix, **gates)
    y = launch(run, "hyper_collapse", **sizes, x=x, pre=next_block["pre"])["y"]
    y = launch(run, f"rms_norm{suffix}", T=tokens, D=width, x=y, w=a["gain"], eps=1e-4)["y"]
    for name, expected in (
        ("x_next", x),
        ("pre", next_block["pre"]),
        ("post_next", next_block["post"]),
        ("comb_next", next_block["comb"]),
        ("y", y),
    ):
        assert fused[name].tobytes() == expected.tobytes(), name
    assert not fused["ticket"].any()


@pytest.mark.parametrize("streams", [1, 3, 4, 8])
def test_a_token_is_split_as_if_it_were_alone(streams: int, run: Run) -> None:
    mix = normal(19, (2 + streams) * streams)
    common = dict(M=streams, scale=1.5, base=0.25, eps=EPS)
    together = run("hyper_split", T=19, mix=mix, **common)
    for t in range(19):
        alone = run("hyper_split", T=1, mix=mix[t : t + 1].copy(), **common)
        for name in ("pre", "post", "comb"):
            assert getattr(alone, name)[0].tobytes() == getattr(together, name)[t].tobytes()


def repeated(kernel: str, times: int, device: HostDevice) -> set[bytes]:
    """The different results of launching on the same bytes again and again."""
    a = arguments(2, 4, 264)
    seen = set()
    for _ in range(times):
        got = run_kernel(
            kernel, device, T=2, M=4, D=264, **a, ticket=0, eps=EPS, mix_eps=EPS, norm_eps=EPS
        )
        seen.add(b"".join(v.tobytes() for v in vars(got).values()))
    return seen


@pytest.mark.parametrize("kernel", ["hyper_post_pre_norm", "hyper_post_pre_norm_f32"])
def test_who_comes_last_does_not_show(kernel: str) -> None:
    in_order = repeated(kernel, 1, HostDevice())
    shuffled = set().union(
        *(repeated(kernel, 1, HostDevice(mode="shuffle", seed=seed)) for seed in range(8))
    )
    workers = repeated(kernel, 20, HostDevice(workers=2))
    assert in_order == shuffled == workers


@pytest.mark.stress
@pytest.mark.parametrize("kernel", ["hyper_post_pre_norm", "hyper_post_pre_norm_f32"])
def test_ten_thousand_launches_give_the_same_bytes(kernel: str) -> None:
    assert len(repeated(kernel, 10_000, HostDevice(workers=2))) == 1


def test_widths_that_break_the_lanes_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="8 consecutive elements"):
        run("hyper_norm_scale", T=1, M=2, D=12, C=8, mix_eps=EPS)
    with pytest.raises(LaunchError, match="streams are unrolled"):
        run("hyper_collapse", T=1, M=9, D=8)
    with pytest.raises(LaunchError, match="divide by zero"):
        run("hyper_split", T=1, M=2, eps=0.0)
