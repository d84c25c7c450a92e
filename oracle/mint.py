"""Contents of made checkpoints: random bits from a key and a count, and what is made of them."""

import numpy as np
import numpy.typing as npt

from oracle.formats import decode, encode

Words = npt.NDArray[np.uint32]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: npt.ArrayLike, key: int) -> Words:
    """Four random words for each counter.

    Shapes: counter [N], whole numbers below 2^64 -> [N, 4].
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox 4x32-10, the
    counter's upper 64 bits zero.
    """
    count = np.asarray(counter, np.uint64)
    c = [count & _LOW, count >> _HALF, np.zeros_like(count), np.zeros_like(count)]
    k = [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> _HALF) ^ c[1] ^ np.uint64(k[0]),
            b & _LOW,
            (a >> _HALF) ^ c[3] ^ np.uint64(k[1]),
            a & _LOW,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, -1).astype(np.uint32)


def mint_e2m1x2(N: int, keys: npt.ArrayLike, start: int) -> npt.NDArray[np.uint8]:
    """The bytes start ... start + N - 1 of each key's stream: two uniform FP4 codes each.

    Shapes: keys [E] -> [E, N], here and below.
    """
    return _streams(N, keys, start, np.dtype(np.uint8))


def mint_e4m3(N: int, keys: npt.ArrayLike, start: int) -> npt.NDArray[np.uint8]:
    """E4M3 codes of sums of four bytes, less their mean 510.

    Rounds: once, to e4m3; sums beyond 448 saturate.
    """
    bytes_ = _streams(4 * N, keys, 4 * start, np.dtype(np.uint8)).reshape(-1, N, 4)
    sums = bytes_.sum(2, np.int64) - 510
    return encode(sums.astype(np.float64), "e4m3").astype(np.uint8)


def mint_ue8m0(
    N: int, keys: npt.ArrayLike, start: int, base: int, threshold: int
) -> npt.NDArray[np.uint8]:
    """Scale bytes around base: -1, 0, 0 or 1 from two bits, and 1 more for 14 bits below threshold.

    The mean square of 2^(byte - base) is 25/16 * (1 + 3 * threshold / 2^14).
    """
    halves = _streams(N, keys, start, np.dtype(np.uint16)).astype(np.int64)
    step = np.array([-1, 0, 0, 1])[halves >> 14]
    return np.asarray(base + step + ((halves & 0x3FFF) < threshold), np.uint8)


def mint_e4m3_scales(
    N: int, keys: npt.ArrayLike, start: int, base: int, threshold: int, second: int
) -> npt.NDArray[np.uint8]:
    """The scales of mint_ue8m0 restated for groups of half the size, over 2^(second - 127).

    Rounds: nowhere, every scale is a power of two that E4M3 holds.
    """
    scales = mint_ue8m0(-(-N // 2), keys, start // 2, base, threshold).repeat(2, 1)[:, :N]
    return encode(np.ldexp(1.0, scales.astype(np.int64) - second), "e4m3").astype(np.uint8)


def mint_f32(
    N: int, keys: npt.ArrayLike, start: int, mean: float, scale: float
) -> npt.NDArray[np.float64]:
    """mean + scale * (the sum of four 16-bit numbers less its mean), nearly normal.

    The sum has standard deviation sqrt((2^32 - 1) / 3).
    Rounds: product and sum to float32, as the content of a made tensor is defined.
    """
    halves = _streams(4 * N, keys, 4 * start, np.dtype(np.uint16)).reshape(-1, N, 4)
    sums = (halves.sum(2, np.int64) - 131070).astype(np.float32)
    return np.asarray(sums * np.float32(scale) + np.float32(mean), np.float64)


def mint_bf16(
    N: int, keys: npt.ArrayLike, start: int, mean: float, scale: float
) -> npt.NDArray[np.float64]:
    """The values of mint_f32, rounded to bf16."""
    return decode(encode(mint_f32(N, keys, start, mean, scale), "bf16"), "bf16")


def mint_expert_ids(V: int, A: int, key: int, start: int, experts: int) -> npt.NDArray[np.int64]:
    """Rows of A distinct ids below `experts`, every set equally likely.

    Shapes: -> [V, A].  Source: Floyd's sampling (Bentley, "Programming pearls", 1987).
    """
    blocks = -(-A // 4)
    words = philox(np.arange(start * blocks, (start + V) * blocks), key).reshape(V, -1)
    ids = np.zeros((V, A), np.int64)
    for j in range(A):
        last = experts - A + j
        drawn = (words[:, j].astype(np.uint64) * np.uint64(last + 1) >> _HALF).astype(np.int64)
        taken = (ids[:, :j] == drawn[:, None]).any(1)
        ids[:, j] = np.where(taken, last, drawn)
    return ids


def _streams(
    count: int, keys: npt.ArrayLike, start: int, dtype: np.dtype[np.unsignedinteger]
) -> np.ndarray:
    """Elements start ... of each key's stream, cut into numbers of that type from the low end."""
    per_block = 16 // dtype.itemsize
    first, end = start // per_block, -(-(start + count) // per_block)
    counters, skipped = np.arange(first, end, dtype=np.uint64), start - first * per_block
    words = [philox(counters, int(key)).astype("<u4") for key in np.asarray(keys)]
    return np.stack([w.reshape(-1).view(dtype)[skipped:][:count] for w in words])
