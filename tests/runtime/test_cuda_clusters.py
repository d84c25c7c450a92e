"""Clusters on a GPU: letters arrive, in clusters of any size that kernels ask for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime.device import open_device
from dsv4.runtime.nvrtc import compile_cubin

SOURCE = Path(__file__).parent / "kernels" / "cluster.cu"


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [1, 2, 3, 5, 8, 9, 11, 13, 15, 16])
def test_letters_go_round_in_a_cluster(cluster: int) -> None:
    import cupy
    from cupy_backends.cuda.api import driver

    device = open_device("cuda")
    if device.arch not in ("sm_90a", "sm_100a"):
        pytest.skip(f"{device.arch} has no clusters of sixteen blocks")
    build = compile_cubin(SOURCE, defines=dict(CLUSTER=cluster, FAULT=0), arch=device.arch)
    function = cupy.RawModule(path=str(build.path)).get_function("send_round")
    driver.funcSetAttribute(function.kernel.ptr, 14, 1)  # clusters of more than eight blocks
    x = np.random.default_rng(3).standard_normal((40 * cluster, 64)).astype(np.float32)
    given, made = cupy.asarray(x), cupy.zeros(x.shape, cupy.float32)
    for _ in range(20):
        made[...] = 0
        function((40 * cluster,), (64,), (given, made), shared_mem=256)
        want = np.roll(x.reshape(40, cluster, 64), 3, axis=1)[..., ::-1]
        assert cupy.asnumpy(made).tobytes() == want.tobytes()
