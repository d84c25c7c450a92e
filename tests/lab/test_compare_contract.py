"""The bounds: float32 emulations stay inside, planted errors leave, sizes are as derived."""

import numpy as np
import pytest

from dsv4.errors import SpecError
from dsv4.spec import BF16, F16, F32, F64, Within
from lab.compare.contract import BOUNDS, dot, evidence, gamma, norm, recurrence, requant, softmax
from lab.compare.judge import judge
from lab.compare.pair import pair
from oracle.formats import encode, round_to, spacing

f4 = np.float32


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def bf16(x):
    """float64 values of bf16 inputs."""
    return round_to(x, "bf16")


def judged(kind, got, ref, magnitude, fmt="f32", *, depth, terms="", accumulator=F32, **shape):
    """The judgement and its evidence; got in float64 of the output format."""
    axes = tuple("TDK"[: np.ndim(ref)])
    both = pair(encode(got, fmt), np.asarray(ref, np.float64), fmt, axes)
    contract = Within(kind, "", depth=depth, accumulator=accumulator, terms=terms)
    return judge(contract, both, magnitude, shape), evidence(contract, both, magnitude, shape)


def planted(kind, got, ref, magnitude, fmt="f32", **more):
    """The judgement after one element was moved to four times its bound."""
    _, facts = judged(kind, got, ref, magnitude, fmt, **more)
    moved = np.array(got, np.float64)
    at = (0,) * moved.ndim
    moved[at] = ref[at] + 4 * BOUNDS[kind](facts)[at]
    return judged(kind, moved, ref, magnitude, fmt, **more)[0]


# ---- emulations in float32, chain by chain -----------------------------------------------------


def dot_f32(a, b):
    """One serial chain: 1 product and at most K adds on the way of a term."""
    total = np.zeros(a.shape[0], f4)
    for k in range(a.shape[1]):
        total = (total + a[:, k].astype(f4) * b[:, k].astype(f4)).astype(f4)
    return total.astype(np.float64)


def norm_f32(x, g, eps):
    squares = np.zeros(x.shape[0], f4)
    for k in range(x.shape[1]):
        squares = squares + x[:, k].astype(f4) ** 2
    r = f4(1) / np.sqrt(squares / f4(x.shape[1]) + f4(eps))
    return ((x.astype(f4) * r[:, None]) * g.astype(f4)).astype(np.float64)


def attention_f32(q, k, v, scale):
    s = np.stack([dot_f32(np.broadcast_to(q, k.shape), k)]).astype(f4)[0] * f4(scale)
    w = np.exp(s - s.max())
    total, out = f4(0), np.zeros(v.shape[1], f4)
    for j in range(v.shape[0]):
        total = total + w[j]
        out = out + w[j] * v[j].astype(f4)
    return (out / total).astype(np.float64)


def attention_f64(q, k, v, scale):
    """The value and the companion of the softmax bound."""
    s = k @ q * scale
    p = np.exp(s - s.max())
    p /= p.sum()
    out = p @ v
    condition = np.abs(k) @ np.abs(q) * scale + np.abs(s - s.max())
    weights = (p + 2.0**-126) * (1 + condition)
    return out, weights @ (np.abs(v) + np.abs(out))


def recurrence_both(a, b):
    """h, its companion, and the float32 run of h = a h + b."""
    h, m, low = np.zeros(a.shape[1]), np.zeros(a.shape[1]), np.zeros(a.shape[1], f4)
    for t in range(a.shape[0]):
        h, m = a[t] * h + b[t], np.abs(a[t]) * m + np.abs(b[t])
        low = a[t].astype(f4) * low + b[t].astype(f4)
    return h, m, low.astype(np.float64)


# ---- dot -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_float32_dot_stays_inside_and_four_bounds_are_outside(fmt, mean):
    a, b = bf16(normal(50, 700) + mean), bf16(normal(50, 700, seed=1))
    ref, magnitude = (a * b).sum(1), np.abs(a * b).sum(1)
    more = dict(depth="K+1", terms="K", K=700)
    got = dot_f32(a, b)
    assert judged("dot", got, ref, magnitude, fmt, **more)[0].passed
    assert not planted("dot", got, ref, magnitude, fmt, **more).passed


def test_a_dot_that_cancels_completely_stays_inside():
    a = np.ones((4, 512))
    b = bf16(normal(4, 512) * 100)
    b[:, 256:] = -b[:, :256][:, ::-1]
    ref, magnitude = np.zeros(4), np.abs(a * b).sum(1)
    assert judged("dot", dot_f32(a, b), ref, magnitude, depth="K+1", K=512)[0].passed


def test_one_lost_product_and_a_bf16_accumulator_leave_the_dot_bound():
    a, b = bf16(normal(50, 512)), bf16(normal(50, 512, seed=1))
    ref, magnitude = (a * b).sum(1), np.abs(a * b).sum(1)
    lost = dot_f32(a[:, :-1], b[:, :-1])
    assert judged("dot", lost, ref, magnitude, depth="K+1", K=512)[0].failing.mean() > 0.9
    total = np.zeros(50)
    for k in range(512):
        total = bf16(total + a[:, k] * b[:, k])
    assert judged("dot", total, ref, magnitude, depth="K+1", K=512)[0].failing.mean() > 0.9


def test_products_that_underflow_are_covered_by_the_number_of_terms():
    # 2^-80 * 1.5 * 2^-70 underflows to 0 or eta; a tree has a short chain but loses all of them.
    a, b = np.full((1, 4096), 2.0**-80), np.full((1, 4096), 1.4 * 2.0**-70)
    ref, magnitude = (a * b).sum(1), np.abs(a * b).sum(1)
    got = np.zeros(1)
    short = judged("dot", got, ref, magnitude, depth="13")[0]
    counted = judged("dot", got, ref, magnitude, depth="13", terms="K", K=4096)[0]
    assert not short.passed and counted.passed


def test_the_dot_bound_has_the_derived_size():
    # gamma(100) = 100 u / (1 - 100 u), M = 3; half a bf16 spacing at 2 is 2^-7.
    _, facts = judged("dot", [2.0], [2.0], np.array([3.0]), "bf16", depth="100")
    u = 2.0**-24
    expected = 100 * u / (1 - 100 * u) * 3 + 2.0**-7
    assert dot(facts)[0] == pytest.approx(expected, rel=1e-9)
    assert dot(facts)[0] >= expected


def test_the_last_rounding_uses_the_spacing_at_the_far_end():
    # Just below 2 an error may carry the sum over 2, where the spacing doubles.
    ref = 2.0 - 2.0**-30
    _, facts = judged("dot", [ref], [ref], np.array([4.0]), "bf16", depth="10")
    assert spacing(ref, "bf16") == 2.0**-7
    assert dot(facts)[0] > 2.0**-7


def test_an_element_without_terms_keeps_its_bytes():
    # At a power of two the neighbour below is half a spacing away: inside any rounding's bound.
    kept = np.array([1.0, 2.0**-149, 0.0, 3.0])
    below = np.array([1.0 - 2.0**-24, 0.0, 2.0**-149, 3.0])
    judgement, _ = judged("dot", kept, kept, np.zeros(4), depth="2")
    assert judgement.passed and judgement.bound_use == 0
    judgement, _ = judged("dot", below, kept, np.zeros(4), depth="2")
    assert list(judgement.failing) == [True, True, True, False]
    judgement, _ = judged("dot", below, kept, np.full(4, 2.0**-30), depth="2")
    assert judgement.passed
    # One rounding of the carried value is still allowed, to the nearer side only.
    judgement, _ = judged("dot", [1.0], [1.0 + 2.0**-30], np.zeros(1), depth="2")
    assert judgement.passed
    judgement, _ = judged("dot", [1.0 + 2.0**-23], [1.0 + 2.0**-30], np.zeros(1), depth="2")
    assert not judgement.passed


def test_a_float64_accumulator_is_held_to_float64():
    a, b = normal(20, 300), normal(20, 300, seed=1)
    ref, magnitude = (a * b).sum(1), np.abs(a * b).sum(1)
    serial = np.zeros(20)
    for k in range(300):
        serial = serial + a[:, k] * b[:, k]
    more = dict(depth="K+1", accumulator=F64, K=300)
    assert judged("dot", serial, ref, magnitude, "f64", **more)[0].passed
    assert not judged("dot", dot_f32(a, b), ref, magnitude, "f64", **more)[0].passed


# ---- norm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_a_float32_norm_stays_inside_and_four_bounds_are_outside(fmt, scale):
    x, g = bf16(normal(20, 600) * scale), bf16(1 + 0.1 * normal(600, seed=2))
    ref = x * g / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    got = norm_f32(x, g, 1e-6)
    more = dict(depth="D", D=600)
    assert judged("norm", got, ref, None, fmt, **more)[0].passed
    assert not planted("norm", got, ref, None, fmt, **more).passed


def test_a_norm_with_a_wrong_length_or_another_eps_leaves():
    x, g = bf16(normal(20, 600)), np.ones(600)
    ref = x * g / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    short = norm_f32(x, g, 1e-6) * np.sqrt(599 / 600)
    eps = norm_f32(x, g, 1e-3)
    for got in (short, eps):
        assert judged("norm", got, ref, None, depth="D", D=600)[0].failing.mean() > 0.9


def test_the_norm_bound_halves_the_chain_of_squares():
    _, facts = judged("norm", [1.0], [1.0], None, depth="600")
    assert norm(facts)[0] == pytest.approx((300 + 8) * 2.0**-24 + 2.0**-24, rel=1e-3)


# ---- softmax -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 8.0])
def test_a_float32_attention_stays_inside_and_four_bounds_are_outside(fmt, sharpness):
    q, k = bf16(normal(64) * sharpness), bf16(normal(200, 64, seed=1))
    v = bf16(normal(200, 16, seed=2))
    ref, magnitude = attention_f64(q, k, v, 0.125)
    got = attention_f32(q, k, v, 0.125)
    more = dict(depth="D + S + 2", D=64, S=200)
    assert judged("softmax", got, ref, magnitude, fmt, **more)[0].passed
    assert not planted("softmax", got, ref, magnitude, fmt, **more).passed


def test_a_key_too_many_leaves_the_softmax_bound():
    q, k, v = bf16(normal(64)), bf16(normal(200, 64, seed=1)), bf16(normal(200, 16, seed=2))
    ref, magnitude = attention_f64(q, k[:-1], v[:-1], 0.125)
    got = attention_f32(q, k, v, 0.125)
    assert not judged("softmax", got, ref, magnitude, depth="D+S", D=64, S=200)[0].passed


def test_probabilities_have_the_companion_of_one_hot_values():
    s = normal(300) * 5
    p = np.exp(s - s.max())
    p /= p.sum()
    condition = np.abs(s) + np.abs(s - s.max())
    weights = (p + 2.0**-126) * (1 + condition)
    magnitude = weights + p * weights.sum()
    low = np.exp(s.astype(f4) - s.astype(f4).max())
    total = f4(0)
    for w in low:
        total = total + w
    got = (low / total).astype(np.float64)
    assert judged("softmax", got, p, magnitude, depth="S", S=300)[0].passed
    assert not planted("softmax", got, p, magnitude, depth="S", S=300).passed


def test_the_softmax_bound_counts_the_roundings_of_exp_and_division():
    _, facts = judged("softmax", [1.0], [1.0], np.array([1.0]), depth="92")
    assert softmax(facts)[0] == pytest.approx(1.1 * 100 * 2.0**-24 + 2.0**-24, rel=1e-3)


# ---- recurrence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.5, 0.99, 1.0])
def test_a_float32_recurrence_stays_inside_and_four_bounds_are_outside(decay):
    a, b = bf16(np.full((200, 30), decay) * np.sign(normal(200, 30))), bf16(normal(200, 30, seed=1))
    h, m, low = recurrence_both(a, b)
    more = dict(depth="2*T", T=200)
    assert judged("recurrence", low, h, m, **more)[0].passed
    assert not planted("recurrence", low, h, m, **more).passed


def test_a_state_kept_in_bf16_leaves_the_float32_bound_and_fits_its_own():
    a, b = np.full((50, 30), 0.9), bf16(normal(50, 30, seed=1))
    h, m, _ = recurrence_both(a, b)
    state = np.zeros(30)
    for t in range(50):
        state = bf16(bf16(a[t] * state) + b[t])
    assert not judged("recurrence", state, h, m, depth="2*T", T=50)[0].passed
    assert judged("recurrence", state, h, m, depth="2*T", accumulator=BF16, T=50)[0].passed


def test_one_step_too_many_leaves_the_recurrence_bound():
    a, b = np.full((50, 30), 0.9), bf16(normal(50, 30, seed=1))
    h, m, _ = recurrence_both(a[:-1], b[:-1])
    late = recurrence_both(a, b)[2]
    assert judged("recurrence", late, h, m, depth="2*T", T=49)[0].failing.mean() > 0.9


def test_the_recurrence_bound_grows_with_the_steps():
    def bound(steps):
        _, facts = judged("recurrence", [1.0], [1.0], np.array([1.0]), depth="2*T", T=steps)
        return recurrence(facts)[0] - 2.0**-24

    assert bound(200) == pytest.approx(10 * bound(20), rel=1e-3)


# ---- requant -------------------------------------------------------------------------------------


def test_requant_allows_the_neighbour_at_a_tie_and_only_there():
    # e4m3 around 16: codes 16 and 18, tie 17. An error of about 1e-5 reaches it from 17 - 1e-6.
    ref = np.array([17 - 1e-6, 17 - 1e-6, 16.5, 16.5, 17 + 1e-6])
    got = [16, 18, 16, 18, 16]
    magnitude = np.full(5, 17.0)
    result, _ = judged("requant", got, ref, magnitude, "e4m3", depth="10")
    assert result.failing.tolist() == [False, False, False, True, False]
    assert result.use.tolist() == [0, 1, 0, np.inf, 1]


def test_requant_never_allows_two_codes_or_the_wrong_neighbour():
    ref = np.array([17 - 1e-6] * 3)
    result, _ = judged("requant", [15, 20, 14], ref, np.full(3, 17.0), "e4m3", depth="10")
    assert result.failing.all()
    # An error of about 6 reaches 11 to 23, but more than one code away is never a tie's doing.
    wide, facts = judged(
        "requant", [20, 14, 15, 18], np.full(4, 17.0), np.full(4, 4000.0), "e4m3", depth="3",
        accumulator=F16,
    )  # fmt: skip
    assert 5 < requant(facts)[0] < 7
    assert wide.failing.tolist() == [True, True, False, False]


def test_float32_arithmetic_before_a_quantiser_stays_inside_and_a_wrong_scale_leaves():
    a, b = bf16(normal(3000, 32)), bf16(normal(3000, 32, seed=1))
    ref, magnitude = (a * b).sum(1), np.abs(a * b).sum(1)
    low = dot_f32(a, b)
    more = dict(fmt="e4m3", depth="K+1", K=32)
    assert judged("requant", low, ref, magnitude, **more)[0].passed
    assert judged("requant", low * 2, ref, magnitude, **more)[0].failing.mean() > 0.9
    # Half a step more everywhere is what truncation gives: most codes change.
    bumped = np.nextafter(low, np.inf) + spacing(low, "e4m3") / 2
    assert judged("requant", bumped, ref, magnitude, **more)[0].failing.mean() > 0.3


# ---- declarations --------------------------------------------------------------------------------


def test_gamma_refuses_chains_that_bound_nothing():
    assert gamma(0, 2.0**-24) == 0.0
    assert gamma(1000, 2.0**-24) == pytest.approx(1000 * 2.0**-24, rel=1e-4)
    with pytest.raises(SpecError, match="bounds nothing"):
        gamma(200, 2.0**-8)


def test_wrong_declarations_are_refused():
    one = np.ones(1)
    with pytest.raises(SpecError, match="no such kind; there are dot"):
        judged("matmul", one, one, one, depth="1")
    with pytest.raises(SpecError, match="return Bounded"):
        judged("dot", one, one, None, depth="1")
    with pytest.raises(SpecError, match="magnitude \\[2\\] for an output \\[1\\]"):
        judged("dot", one, one, np.ones(2), depth="1")
    for bad in (np.nan, -1.0):
        with pytest.raises(SpecError, match="NaN or negative"):
            judged("dot", one, one, np.array([bad]), depth="1")
    with pytest.raises(SpecError, match="K is not bound"):
        judged("dot", one, one, one, depth="K")
    with pytest.raises(SpecError, match="integers do not round"):
        both = pair(np.ones(1, np.int32), np.ones(1), "i32", ("N",))
        judge(Within("dot", ""), both, one, {})


def test_every_kind_explains_its_formula():
    for kind, bound in BOUNDS.items():
        assert bound.__doc__ and "M" in bound.__doc__ and "L" in bound.__doc__, kind
