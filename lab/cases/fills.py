"""Contents for arrays: random, adversarial, and exhaustive. Each returns stored bits.

A fill is called with a generator, the shape, the format and the bound axes; it returns an array of
the format's storage type. Floating formats are filled through `oracle.formats.encode`, so a fill
says values and the format says bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsv4.axes import Shape, evaluate
from dsv4.errors import SpecError
from dsv4.spec import Format
from oracle.formats import FORMATS, encode

Fill = Callable[[np.random.Generator, tuple[int, ...], Format, Shape], np.ndarray]


def default_fill(fmt: Format) -> Fill:
    """Standard normal for floats, every valid code for code formats, small numbers for integers."""
    if fmt.is_float:
        return normal()
    if fmt.name == "ue8m0":
        return bytes_between(119, 123)
    if fmt.name == "e4m3":
        return finite_e4m3()
    if fmt.name in ("e2m1x2", "u8"):
        return bytes_between(0, 256)
    raise SpecError(f"an argument of format {fmt.name} needs an explicit fill")


def values(make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> Fill:
    """A fill from a function that returns float64 values (or integers for integer formats)."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        made = np.broadcast_to(make(rng, shape), shape)
        if fmt.is_float or fmt.name in FORMATS:
            with np.errstate(over="ignore"):
                return encode(np.asarray(made, np.float64), fmt.name)
        return np.ascontiguousarray(made).astype(fmt.storage)

    return fill


def constant(value: float) -> Fill:
    """The same value everywhere."""
    return values(lambda rng, shape: np.full(shape, value))


def normal(scale: float = 1.0, mean: float = 0.0) -> Fill:
    """Independent normal values."""
    return values(lambda rng, shape: rng.standard_normal(shape) * scale + mean)


def uniform(low: float, high: float) -> Fill:
    """Independent uniform values."""
    return values(lambda rng, shape: rng.uniform(low, high, shape))


def wide(low_exponent: int, high_exponent: int) -> Fill:
    """Random signs and magnitudes spread evenly over binades, 2^low to 2^high."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        # ldexp is exact everywhere; exp2 of a fraction would differ between machines.
        exponent = rng.integers(low_exponent, high_exponent, shape)
        signs = rng.choice([-1.0, 1.0], shape)
        return np.asarray(np.ldexp(rng.uniform(1.0, 2.0, shape), exponent) * signs)

    return values(make)


def alternating(value: float, noise: float = 0.0) -> Fill:
    """+v, -v, +v, ... along the last axis: sums that annihilate."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        signs = np.where(np.arange(shape[-1]) % 2 == 0, 1.0, -1.0)
        return signs * (value + noise * rng.standard_normal(shape))

    return values(make)


def one_huge(value: float, rest: float = 1.0) -> Fill:
    """Normal values with one element of the last axis set to `value` in every row."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = rng.standard_normal(shape) * rest
        made[..., int(rng.integers(shape[-1]))] = value
        return made

    return values(make)


def subnormal() -> Fill:
    """Values around and below the format's smallest normal, both signs, zeros of both signs."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        facts = FORMATS[fmt.name]
        made = rng.uniform(-2.0, 2.0, shape) * facts.min_normal
        made[rng.random(shape) < 0.1] = -0.0
        made[rng.random(shape) < 0.1] = facts.min_subnormal
        return encode(made, fmt.name)

    return fill


def extreme(fraction_of_max: float = 1.0) -> Fill:
    """The format's largest finite value times a fraction, random signs."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        top = FORMATS[fmt.name].max * fraction_of_max
        return encode(rng.choice([-top, top], shape), fmt.name)

    return fill


def sprinkled(base: Fill, specials: Sequence[float], share: float = 0.05) -> Fill:
    """A base fill with these values (NaN and infinities included) placed at random."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        made = base(rng, shape, fmt, s)
        spots = rng.random(shape) < share
        # At least one special in every array, whatever its size.
        spots.reshape(-1)[int(rng.integers(spots.size))] = True
        chosen = encode(rng.choice(np.asarray(specials, np.float64), shape), fmt.name)
        return np.where(spots, chosen, made)

    return fill


def bits_every(count_bits: int = 16) -> Fill:
    """Every bit pattern of a format of that many bits, repeated or cut to the shape."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        patterns = np.arange(2**count_bits, dtype=np.uint32).astype(fmt.storage)
        return np.resize(patterns, shape)

    return fill


def bytes_between(low: int, high: int) -> Fill:
    """Independent codes, low included, high excluded."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return rng.integers(low, high, shape).astype(fmt.storage)

    return fill


def finite_e4m3() -> Fill:
    """All E4M3 codes but the two NaNs, each equally often."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        codes = rng.integers(0, 127, shape) | (rng.integers(0, 2, shape) << 7)
        return codes.astype(fmt.storage)

    return fill


def ids(below: str, *, repeats: bool = True) -> Fill:
    """Row ids in [0, below), an axis expression; without repeats, distinct ones."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        limit = int(evaluate(below, s))
        if repeats:
            return rng.integers(0, limit, shape).astype(fmt.storage)
        count = int(np.prod(shape))
        return rng.permutation(limit)[:count].reshape(shape).astype(fmt.storage)

    return fill


def powers_of_two(low: int, high: int) -> Fill:
    """2^k with k drawn from [low, high]."""
    return values(lambda rng, shape: np.ldexp(1.0, rng.integers(low, high + 1, shape)))


def literal(content: Sequence[float] | np.ndarray) -> Fill:
    """These values, repeated or cut to the shape."""
    return values(lambda rng, shape: np.resize(np.asarray(content, np.float64), shape))
