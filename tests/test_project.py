"""All products of a layer's input at once: by hand, alone and among eight, in and out of memory."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.axes import Shape
from dsv4.card import MULTIPROCESSORS
from dsv4.errors import LaunchError
from dsv4.kernels.project import project_blocks, project_indexed, project_window
from lab.testing import contract_tests, speed_tests
from oracle.formats import encode
from oracle.project import project_indexed as oracle_indexed

Run = Callable[..., SimpleNamespace]

test_contract_window = contract_tests("project_window")
test_contract_blocks = contract_tests("project_blocks")
test_contract_indexed = contract_tests("project_indexed")
test_speed_window = speed_tests("project_window")
test_speed_blocks = speed_tests("project_blocks")
test_speed_indexed = speed_tests("project_indexed")

ONE = 0x38  # 1 in E4M3
# Coefficients of one stream, where they do not matter.
OPEN: dict[str, Any] = dict(M=1, mix=0.0, hyper_scale=1.0, hyper_base=0.0, eps=1e-6)


def weights(D: int, Q: int, K: int, L: int, H: int, seed: int = 0) -> dict[str, Any]:
    """Weights of an indexed layer; scales are no powers of two."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name, rows in (("q", Q), ("kv", K)):
        made[f"{name}_codes"] = rng.integers(0, 0x7F, (rows, D), np.uint8)
        shape = (-(-rows // 128), -(-D // 128))
        made[f"{name}_scales"] = rng.uniform(0.01, 0.02, shape).astype(np.float32)
    pairs = (("wkv", 2 * K), ("wgate", 2 * K), ("index_wkv", L), ("index_wgate", L), ("proj", H))
    return made | {n: encode(rng.standard_normal((rows, D)), "bf16") for n, rows in pairs}


def rings(S: int, K: int, L: int) -> dict[str, np.ndarray]:
    """Rings of sevens."""
    widths = {"raw_kv": 2 * K, "raw_score": 2 * K, "index_kv": L, "index_score": L}
    return {name: np.full((S, width), 7.0, np.float32) for name, width in widths.items()}


def test_a_row_by_hand(run: Run) -> None:
    # x = 1 + 2^-10 is 1 in bf16. FP8: 16 codes of 1 at scale 0.5 sum to 8. bf16 weights of 2: the
    # heads' sum is 32, that of a compressor keeps the 2^-10: 32 + 2^-5.
    x = np.full((1, 16), 1 + 2.0**-10, np.float32)
    codes = np.full((1, 16), ONE, np.uint8)
    named: dict[str, Any] = dict(x=x, q_codes=codes, kv_codes=codes, q_scales=0.5, kv_scales=0.25)
    named |= dict.fromkeys(("wkv", "wgate", "index_wkv", "index_wgate", "proj"), 2.0)
    named |= dict(raw_rows=np.int32([1]), **rings(2, 1, 3), **OPEN)
    got = run("project_indexed", T=1, D=16, Q=1, K=1, S=2, L=3, H=1, **named)
    assert (got.latent.item(), got.kv.item(), got.heads.item()) == (8.0, 4.0, 32.0)
    for ring in (got.raw_kv, got.raw_score, got.index_kv, got.index_score):
        assert (ring[0] == 7.0).all() and (ring[1] == 32 + 2.0**-5).all()


def test_oracle_agrees_with_plain_loops() -> None:
    made = weights(144, 3, 2, 3, 2, seed=1)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 144)).astype(np.float32)
    decoded = {n: w for n, w in made.items() if n.endswith(("codes", "scales"))}
    floats = {n: rng.standard_normal(w.shape) for n, w in made.items() if n not in decoded}
    held = {n: r.astype(np.float64) for n, r in rings(4, 2, 3).items()}
    places = np.array([3, -1])
    opened = dict(mix=np.zeros((2, 3)), hyper_scale=np.ones(3), hyper_base=np.zeros(3))
    found = oracle_indexed(
        x=x.astype(np.float64), raw_rows=places, **decoded, **floats, **held, **opened, M=1,
        eps=1e-6, iterations=20,
    )  # fmt: skip
    for name, w in (("raw_kv", "wkv"), ("index_score", "index_wgate")):
        row = [sum(float(a) * b for a, b in zip(x[0], r, strict=True)) for r in floats[w]]
        assert np.allclose(found[name].value[3], row, rtol=1e-12)
        assert (found[name].value[:3] == 7.0).all() and not found[name].magnitude[:3].any()
    exact = [sum(float(a) * b for a, b in zip(x[1], r, strict=True)) for r in floats["proj"]]
    assert np.allclose(found["heads"].value[1], exact, atol=0.2)
    assert not np.allclose(found["heads"].value[1], exact, atol=1e-9)


@pytest.mark.parametrize("width", [528, 8192], ids=["x in shared memory", "x too long for it"])
def test_a_row_has_the_same_bytes_alone_and_among_eight(width: int, run: Run) -> None:
    made = weights(width, 9, 5, 6, 3, seed=3)
    x = np.random.default_rng(4).standard_normal((8, width)).astype(np.float32)
    places = np.random.default_rng(5).permutation(8).astype(np.int32)
    sizes = dict(D=width, Q=9, K=5, S=8, L=6, H=3, M=4)
    shapes = [Shape(dict(T=t, iterations=20, **sizes)) for t in (1, 8)]
    staged = [project_indexed.spec.constants(s)["STAGED"] for s in shapes]
    assert staged == [1, int(width < 8192)]
    held = rings(8, 5, 6)
    mix = np.random.default_rng(6).standard_normal((8, 24)).astype(np.float32)
    common = {**sizes, **made, **held, "hyper_scale": 1.0, "hyper_base": 0.0, "eps": 1e-6}
    together = run("project_indexed", T=8, x=x, raw_rows=places, mix=mix, **common)
    for t in range(8):
        mine = dict(x=x[t : t + 1], raw_rows=places[t : t + 1], mix=mix[t : t + 1])
        alone = run("project_indexed", T=1, **mine, **common)
        for name in ("latent", "kv", "heads", "post", "comb"):
            assert np.array_equal(vars(alone)[name][0], vars(together)[name][t]), name
        for name in held:
            assert np.array_equal(vars(alone)[name][places[t]], vars(together)[name][places[t]])


def test_rows_without_a_place_leave_the_rings(run: Run) -> None:
    made, held = weights(32, 2, 2, 2, 1), rings(3, 2, 2)
    x, places = np.ones((3, 32), np.float32), np.int32([-1, 3, -(2**31)])
    sizes = dict(T=3, D=32, Q=2, K=2, S=3, L=2, H=1)
    got = run("project_indexed", x=x, raw_rows=places, **sizes, **made, **held, **OPEN)
    assert all((vars(got)[name] == 7.0).all() for name in held)


def test_every_row_is_balanced_in_a_block_that_has_no_products(run: Run) -> None:
    mix = np.random.default_rng(7).standard_normal((8, 24)).astype(np.float32)
    given = {**OPEN, "M": 4, "mix": mix}
    sizes: dict[str, Any] = dict(T=8, D=16, Q=3, K=2)
    spec = project_window.spec
    shape = Shape(dict(M=4, iterations=20, **sizes))
    assert spec.geometry(shape).grid == (spec.constants(shape)["BLOCKS"] + 1, 1, 1)
    got = run("project_window", **sizes, **given)
    split = run("hyper_split", T=8, M=4, mix=mix, scale=1.0, base=0.0, eps=1e-6)
    assert got.post.tobytes() == split.post.tobytes()
    assert got.comb.tobytes() == split.comb.tobytes()


def test_the_model_has_a_multiprocessor_left_for_that_block() -> None:
    flash = Shape(dict(T=1, M=4, D=4096, Q=1024, K=512, L=256, H=64, S=16, iterations=20))
    for made, heights in (
        (project_window, {"DENSE": 1536}),
        (project_blocks, {"DENSE": 1536, "MAIN": 1024}),
        (project_indexed, {"DENSE": 1536, "MAIN": 2048, "INDEX": 512, "HEAD": 64}),
    ):
        found = made.spec.constants(flash)
        assert found["BLOCKS"] == MULTIPROCESSORS - 1
        for name, height in heights.items():
            assert found[f"{name}_HEIGHT"] == height
            # No block has more rows than it would with one block more.
            assert -(-height // found["BLOCKS"]) == -(-height // MULTIPROCESSORS)


@pytest.mark.parametrize(
    ("rows", "width", "reason"),
    [(9, 16, "8 rows"), (1, 24, "16 consecutive"), (1, 8208, "32 parts")],
)
def test_sizes_that_it_cannot_take_are_refused(
    rows: int, width: int, reason: str, run: Run
) -> None:
    with pytest.raises(LaunchError, match=reason):
        run("project_window", T=rows, D=width, Q=1, K=1, **OPEN)
