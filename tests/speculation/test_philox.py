"""Random numbers: the published answer, the streams' own, and uniforms at the ends."""

import numpy as np
import pytest

from dsv4.speculation.philox import (
    RESIDUAL,
    gumbel_words,
    host_u01,
    open_uniform,
    philox,
    residual_u01,
    uniform,
)


def test_the_published_known_answer() -> None:
    words = [int(w[0]) for w in philox(0, 0, 0)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        (7, [0.57939035, 0.69752020, 0.29635131, 0.42744496]),
        (42, [0.50673640, 0.99576032, 0.27646735, 0.73747718]),
        (0x123456789ABCDEF0, [0.71481639, 0.51395154, 0.32860023, 0.81859910]),
    ],
)
def test_uniforms_of_the_host_stream(seed: int, wanted: list[float]) -> None:
    assert [host_u01(seed, n) for n in range(4)] == pytest.approx(wanted, abs=5e-9)


def test_words_of_tokens_and_residuals() -> None:
    wanted = "9ceaf053 77f5493b 12bf50ad 5742b3d7 fcdb2127 53ba6cfd 838f5a6e 744e06fb"
    assert [f"{w:08x}" for w in gumbel_words(42, 0, 8)] == wanted.split()
    found = [int(philox(42, RESIDUAL, n)[0][0]) for n in range(3)]
    assert [f"{w:08x}" for w in found] == ["6aeb6179", "effb5002", "4dcdc702"]
    assert residual_u01(42, 0) == float(uniform(np.array([0x6AEB6179], np.uint32))[0])


def test_only_the_host_stream_reaches_one() -> None:
    words = np.array([0, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFF], np.uint32)
    assert uniform(words).tolist() == [2.0**-32, 1 - 2.0**-24, 1.0, 1.0]
    assert (open_uniform(words) < 1).all()
    assert np.isfinite(-np.log(-np.log(open_uniform(words).astype(float)))).all()


def test_event_counters_wrap_at_32_bits() -> None:
    assert host_u01(3, 2**32) == host_u01(3, 0)
