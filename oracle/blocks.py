"""Block-scaled weights as checkpoints store them: FP8 128x128, MXFP4 and NVFP4, both ways.

A weight is a code times a scale (times a second scale in NVFP4), never divided by it. All products
are exact in float64, so a decoded weight is the stored number itself.
"""

import numpy as np
import numpy.typing as npt

from oracle.formats import FORMATS, Floats, decode, encode

Bytes = npt.NDArray[np.uint8]
Exponents = npt.NDArray[np.int32]


def smallest_exponent(amax: npt.ArrayLike, largest: float) -> Exponents:
    """The smallest integer k with amax <= largest * 2^k, exactly: mantissas are compared, no log.

    Errors: ValueError unless every amax is finite and positive.
    """
    amax = np.asarray(amax, np.float64)
    if not (np.isfinite(amax) & (amax > 0)).all():
        raise ValueError("a scale needs a finite positive maximum; found 0, NaN or infinity")
    mantissa, exponent = np.frexp(amax)
    top_mantissa, top_exponent = np.frexp(largest)
    return np.asarray(exponent - top_exponent + (mantissa > top_mantissa), np.int32)


def unpack_e2m1(packed: npt.ArrayLike) -> Bytes:
    """The e2m1 codes of packed bytes: the low nibble is the even element, the last axis doubles."""
    packed = _u8(packed, "packed")
    nibbles = np.stack([packed & 15, packed >> 4], -1).astype(np.uint8)
    return nibbles.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def pack_e2m1(codes: npt.ArrayLike) -> Bytes:
    """The bytes that hold e2m1 codes two by two, the even one in the low nibble."""
    codes = _u8(codes, "codes")
    if codes.shape[-1] % 2 or (codes.size and int(codes.max()) > 15):
        raise ValueError(f"pack_e2m1 takes codes 0..15 and an even last axis; found {codes.shape}")
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def decode_fp8_block(codes: npt.ArrayLike, scales: npt.ArrayLike, block: int = 128) -> Floats:
    """The weights of e4m3 codes with one scale per block x block tile; edge tiles may be partial.

    Shapes: codes [N,K]; scales [ceil(N/block), ceil(K/block)], ue8m0 bytes or scale *values*.
    Errors: ValueError for other shapes, or integer scales that are not bytes.
    """
    weights, s = decode(codes, "e4m3"), _scales(scales)
    expected = tuple(-(-n // block) for n in weights.shape)
    _expect(s.shape == expected, f"scales {s.shape} for codes {weights.shape}: want {expected}")
    s = s.repeat(block, 0)[: weights.shape[0]].repeat(block, 1)[:, : weights.shape[1]]
    return weights * s


def decode_mxfp4(packed: npt.ArrayLike, scales: npt.ArrayLike) -> Floats:
    """The weights of packed e2m1 with one ue8m0 scale per 32.  Shapes: [..,K/2], [..,K/32]."""
    return _grouped(packed, _scales(scales), 32)


def decode_nvfp4(packed: npt.ArrayLike, scales: npt.ArrayLike, scale2: float) -> Floats:
    """The weights of packed e2m1 times an e4m3 scale per 16 times one float32 scale.

    Shapes: packed [..,K/2]; scales [..,K/16].  Rounds: not at all, (code * scale) * scale2 fits
    float64; in float32 only the first product is exact.
    """
    return _grouped(packed, decode(scales, "e4m3"), 16) * np.float64(np.float32(scale2))


def encode_fp8_block(weights: npt.ArrayLike, block: int = 128) -> tuple[Bytes, Bytes]:
    """The (e4m3 codes, ue8m0 scales) of weights [N,K]; each block's scale just covers its amax.

    Rounds: once, to e4m3, saturating. A block of zeros gets scale 1 (byte 127).
    """
    w = np.asarray(weights, np.float64)
    rows, cols = (-(-n // block) for n in w.shape)
    padded = np.zeros((rows * block, cols * block))
    padded[: w.shape[0], : w.shape[1]] = np.abs(w)
    k = _covering(padded.reshape(rows, block, cols, block).max((1, 3)), FORMATS["e4m3"].max)
    spread = k.repeat(block, 0)[: w.shape[0]].repeat(block, 1)[:, : w.shape[1]]
    return encode(np.ldexp(w, -spread), "e4m3").astype(np.uint8), (k + 127).astype(np.uint8)


def encode_mxfp4(weights: npt.ArrayLike) -> tuple[Bytes, Bytes]:
    """The (packed e2m1, ue8m0 scales) of weights [..,K], K a multiple of 32."""
    w = _groups(weights, 32)
    k = _covering(np.abs(w).max(-1), FORMATS["e2m1"].max)
    return _packed(np.ldexp(w, -k[..., None])), (k + 127).astype(np.uint8)


def encode_nvfp4(
    weights: npt.ArrayLike, scale2: float | None = None
) -> tuple[Bytes, Bytes, np.float32]:
    """The (packed e2m1, e4m3 scales, float32 scale2) of weights [..,K], K a multiple of 16.

    Rounds: amax / (6 * scale2) to e4m3, then each weight over its rounded scale to e2m1. If no
    scale2 is given it is the smallest power of two that keeps every block scale within 448, so
    that the decoded weights are exact in bf16. A block whose scale rounds to zero holds zeros.
    """
    w = _groups(weights, 16)
    amax = np.abs(w).max(-1)
    if scale2 is None:
        scale2 = float(np.ldexp(1.0, _covering(amax.max(), 6.0 * FORMATS["e4m3"].max)))
    second = np.float32(scale2)
    _expect(bool(np.isfinite(second) and second > 0), f"scale2 {scale2}: want finite, positive")
    scales = encode(amax / (6.0 * np.float64(second)), "e4m3").astype(np.uint8)
    step = decode(scales, "e4m3")[..., None] * np.float64(second)
    return _packed(np.divide(w, step, out=np.zeros_like(w), where=step > 0)), scales, second


def _covering(amax: Floats, largest: float) -> Exponents:
    amax = np.where(amax == 0, largest, amax)
    return np.clip(smallest_exponent(amax, largest), -127, 127)


def _groups(weights: npt.ArrayLike, group: int) -> Floats:
    w = np.asarray(weights, np.float64)
    _expect(w.shape[-1] % group == 0, f"{w.shape[-1]} columns do not divide by {group}; pad them")
    return w.reshape(*w.shape[:-1], -1, group)


def _packed(w: Floats) -> Bytes:
    return pack_e2m1(encode(w.reshape(*w.shape[:-2], -1), "e2m1"))


def _grouped(packed: npt.ArrayLike, scales: Floats, group: int) -> Floats:
    w = decode(unpack_e2m1(packed), "e2m1")
    expected = (*w.shape[:-1], w.shape[-1] // group)
    _expect(
        w.shape[-1] % group == 0 and scales.shape == expected,
        f"scales {scales.shape} for codes {w.shape}: want {expected}, one per {group}",
    )
    return w * scales.repeat(group, -1)


def _scales(scales: npt.ArrayLike) -> Floats:
    s = np.asarray(scales)
    if np.issubdtype(s.dtype, np.floating):
        return s.astype(np.float64)
    return decode(s, "ue8m0")


def _u8(array: npt.ArrayLike, name: str) -> Bytes:
    array = np.asarray(array)
    _expect(array.dtype == np.uint8, f"{name} must be uint8 (view int8 as uint8): {array.dtype}")
    return array


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
