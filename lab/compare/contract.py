"""The contracts' arithmetic: for each kind of `Within`, once, how far an element may be off.

Notation. u: unit roundoff of the accumulator (2^-24 for f32), half its spacing at 1. eta: its
smallest subnormal. L (`depth`): roundings on the longest way from an input to the result. N
(`terms`): how many products are summed, L when not declared. gamma(L) = L u / (1 - L u) bounds the
relative error of L roundings in any order (Higham, Accuracy and Stability, lemma 3.1). M: the
magnitude companion that the oracle returns beside its value, one number per element.

Every bound ends with two additions: gamma(N) in float64 times M, because the oracle sums too; and
half a spacing of the output format at the far end of the interval, for the last rounding.
Where M is 0 there is nothing to bound: every term is 0, or the element is only carried over. Then
the result is the reference rounded once, and no neighbour of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.axes import evaluate
from dsv4.errors import SpecError
from dsv4.spec import Within
from lab.compare.pair import Pair
from lab.compare.ulp import unit_roundoff
from oracle.formats import FORMATS, Floats, round_to, spacing

EXP_SPACINGS = 2  # accuracy of expf and exp2f on the device, in spacings; host libraries do better
RSQRT_SPACINGS = 2
_SECOND_ORDER = 1.1


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a bound is computed from: unrounded reference, magnitudes, lengths and formats."""

    ref: Floats
    magnitude: Floats
    depth: int
    terms: int
    accumulator: str
    fmt: str

    @property
    def eta(self) -> float:
        """The smallest subnormal of the accumulator."""
        return FORMATS[self.accumulator].min_subnormal

    def gamma(self, length: int) -> float:
        """gamma(length) in the accumulator's format."""
        return gamma(length, unit_roundoff(self.accumulator))


def gamma(length: int, u: float) -> float:
    """L u / (1 - L u). Errors: SpecError when so many roundings bound nothing (L u >= 1/2)."""
    if length < 0 or length * u >= 0.5:
        raise SpecError(
            f"a chain of {length} roundings with unit roundoff {u:.3g} bounds nothing\n"
            "  declare a smaller depth, or a wider accumulator"
        )
    return length * u / (1 - length * u)


def dot(e: Evidence) -> Floats:
    """Products summed in any order.  error <= gamma(L) M + N eta.

    M = sum |a_i b_i|. L counts the product, the adds it passes through, and later factors: K for
    one serial chain, chunk + log2(threads) + 1 for chains joined by a tree. A tensor core aligns
    the terms of a product and the sum before it to the largest and cuts off below 24 bits: every
    term and result that it cuts loses up to 2^-23 of that largest, which is at most M, and counts
    as two. A product that underflows is off by at most eta/2 instead of relatively, and the later
    roundings can no more than double that.
    """
    return _closed(e, e.gamma(e.depth) * e.magnitude + e.terms * e.eta)


def softmax(e: Evidence) -> Floats:
    """o = sum_j p_j v_j with p = softmax(s).  error <= 1.1 gamma(L + 8) M.

    M = sum_j (p_j + tiny) (1 + A_j) (|v_j| + |o|), with A_j = sum_d |q_d k_jd| scale + |s_j - max|
    and tiny the accumulator's smallest normal; for probabilities themselves v is one-hot, so
    M_i = (p_i + tiny) (1 + A_i) + p_i sum_j (p_j + tiny) (1 + A_j).
    Derivation: to first order the error is sum_j p_j d_j (v_j - o), d_j the relative error of
    weight j. A logit is off by gamma(Lq) A_j, the subtraction of the maximum by u |s_j - max|, exp
    itself by 2 spacings = 4 u; sum, product and division add relative errors. L is the longest way:
    logit chain + value chain + one per rescaling of a running sum; the 8 are exp (4), subtraction,
    weight times value, division and its denominator. tiny covers weights that underflow (absolute
    error eta/2 = u tiny). 1.1 covers second order while gamma(L + 8) (1 + A_j) <= 0.08.
    """
    roundings = e.depth + 2 * EXP_SPACINGS + 4
    return _closed(e, _SECOND_ORDER * e.gamma(roundings) * e.magnitude)


def norm(e: Evidence) -> Floats:
    """y = x g / sqrt(mean x^2 + eps).  error <= gamma(ceil(L/2) + 8) M + N eta.

    M = |y|, which is also what a missing companion means; a norm that subtracts a mean m first has
    M = (|x| + |m|) |g| r. L: the chain of the sum of squares. All its terms are positive, so its
    relative error is gamma(L), and the root halves it. The 8: mean and eps (1 after halving), the
    reciprocal root within 2 spacings (4), times x, times g, and 1 for the halved products.
    The products are off by eta at most when they underflow, while |g| < N.
    """
    roundings = math.ceil(e.depth / 2) + 2 * RSQRT_SPACINGS + 4
    return _closed(e, e.gamma(roundings) * e.magnitude + e.terms * e.eta)


def recurrence(e: Evidence) -> Floats:
    """h_t = a_t h_(t-1) + b_t over T steps.  error <= gamma(L) M + N eta.

    M_t = |a_t| M_(t-1) + |b_t|, the same recurrence on magnitudes, M_0 = |h_0|; b_t's own terms
    enter as magnitudes. L = T times the roundings of one step (2, or 1 with a fused product), plus
    those inside b_t. The accumulator is the format in which the state is kept between steps. For
    |a_t| <= 1 an underflow in one step is never amplified. A non-linear step enters through its
    derivative: |f'(h)| in the place of |a|.
    """
    return _closed(e, e.gamma(e.depth) * e.magnitude + e.terms * e.eta)


def requant(e: Evidence) -> Floats:
    """A value known within an error, then rounded to the format: how far it may be off *before*.

    M and L as for `dot`. The element must be the code of some value in ref +- this error, at most
    one code from the reference's: so one step is allowed exactly where ref lies within its own
    error of a tie. The scale of a group must be exact: a scale that flips changes every code, and
    no bound per element can say that.
    """
    return e.gamma(e.depth) * e.magnitude + e.terms * e.eta + _own(e)


BOUNDS: Mapping[str, Callable[[Evidence], Floats]] = {
    f.__name__: f for f in (dot, softmax, norm, recurrence, requant)
}


def evidence(
    contract: Within, pair: Pair, magnitude: Floats | None, shape: Mapping[str, Any]
) -> Evidence:
    """The evidence of a declared contract for one output.

    Errors: SpecError for an unknown kind, an integer output, a missing or misshapen companion, or a
    companion that is NaN or negative where the reference is a number.
    """
    where = f"Within({contract.kind!r}) of a {pair.fmt} output"
    if contract.kind not in BOUNDS:
        raise SpecError(f"{where}: no such kind; there are {', '.join(BOUNDS)}")
    if pair.is_integer:
        raise SpecError(f"{where}: integers do not round; declare Exact or Ulp")
    if magnitude is None and contract.kind != "norm":
        raise SpecError(f"{where}: the oracle gave no magnitude; return Bounded(value, magnitude)")
    m = np.abs(pair.target) if magnitude is None else np.asarray(magnitude, np.float64)
    try:
        m = np.broadcast_to(m, pair.shape)
    except ValueError:
        raise SpecError(
            f"{where}: magnitude {list(m.shape)} for an output {list(pair.shape)}"
        ) from None
    if (np.isfinite(pair.target) & ~(m >= 0)).any():
        raise SpecError(f"{where}: the magnitude is NaN or negative where the reference is finite")
    depth = int(evaluate(contract.depth, shape))
    terms = int(evaluate(contract.terms, shape)) if contract.terms else depth
    return Evidence(pair.target, m, depth, terms, contract.accumulator.name, pair.fmt)


def _closed(e: Evidence, error: Floats) -> Floats:
    error = error + _own(e)
    ref = np.where(np.isfinite(e.ref), e.ref, 0.0)
    bound = error + spacing(np.abs(ref) + error, e.fmt) / 2
    return np.where(e.magnitude == 0, np.abs(round_to(ref, e.fmt) - ref), bound)


def _own(e: Evidence) -> Floats:
    return gamma(max(e.terms, 1), unit_roundoff("f64")) * e.magnitude
