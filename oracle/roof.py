"""Reading as fast as memory gives: what is left of the words shows that each was read."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]


def roof_read(x: Words, B: int) -> Words:
    """The xor of the words in each of B contiguous spans.  Shapes: x [N] -> [B].

    A span is whole vectors of four words, as many as ceil(N // 4 / B); later ones may be short or
    empty. The last span also has the N % 4 words that are no vector.
    Source: measured bandwidth of a read-only stream; no part of the model.
    """
    vectors = len(x) // 4
    span = 4 * -(-vectors // B)
    whole = x[: 4 * vectors]
    folded = [np.bitwise_xor.reduce(whole[b * span : (b + 1) * span]) for b in range(B)]
    folded[-1] ^= np.bitwise_xor.reduce(x[4 * vectors :])
    return np.asarray(folded, np.int64)
