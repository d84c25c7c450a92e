"""The gated DeltaNet layer of hybrid Qwen targets, whatever its projections are packed like."""

from dataclasses import dataclass

import numpy as np

from oracle.formats import Floats
from oracle.gated_delta import causal_conv, conv_tail, decay, recurrence, unit_heads
from oracle.qwen3 import Tensors
from oracle.qwen_config import Linear, QwenConfig
from oracle.rms_norm import rms_norm


@dataclass(frozen=True, slots=True)
class Projected:
    """Convolution inputs u [T,q|k|v], output gate z [T,H,D], and the two head vectors [T,H]."""

    u: Floats
    z: Floats
    b: Floats
    a: Floats


@dataclass(frozen=True, slots=True)
class Scan:
    """What a layer fed to its convolution and its recurrence: enough to redo a prefix of it."""

    u: Floats
    q: Floats
    k: Floats
    v: Floats
    g: Floats
    beta: Floats

    def prefix(self, keep: int, conv: Floats, state: Floats) -> tuple[Floats, Floats]:
        """Convolution inputs and recurrent state after the first `keep` rows."""
        rows = slice(keep)
        after = recurrence(
            self.q[rows], self.k[rows], self.v[rows], self.g[rows], self.beta[rows], state
        )[1]
        return conv_tail(self.u[rows], conv), after


def project(config: QwenConfig, w: Tensors, at: str, n: Floats) -> Projected:
    """The projections of a layer's input in the order q, k, v, heads ascending."""
    sizes = _sizes(config)
    rows, share = len(n), sizes.value_heads // sizes.key_heads
    if f"{at}in_proj_qkv.weight" in w:
        z = (n @ w[f"{at}in_proj_z.weight"].T).reshape(rows, sizes.value_heads, -1)
        b, a = n @ w[f"{at}in_proj_b.weight"].T, n @ w[f"{at}in_proj_a.weight"].T
        return Projected(n @ w[f"{at}in_proj_qkv.weight"].T, z, b, a)
    packed = (n @ w[f"{at}in_proj_qkvz.weight"].T).reshape(rows, sizes.key_heads, -1)
    kw, vw = sizes.key_width, share * sizes.value_width
    q, k, v, z = np.split(packed, [kw, 2 * kw, 2 * kw + vw], axis=2)
    ba = (n @ w[f"{at}in_proj_ba.weight"].T).reshape(rows, sizes.key_heads, 2 * share)
    u = np.concatenate([part.reshape(rows, -1) for part in (q, k, v)], axis=1)
    return Projected(
        u,
        z.reshape(rows, sizes.value_heads, -1),
        ba[..., :share].reshape(rows, -1),
        ba[..., share:].reshape(rows, -1),
    )


def linear_layer(
    config: QwenConfig, w: Tensors, at: str, n: Floats, conv: Floats, state: Floats
) -> tuple[Floats, Scan, Floats, Floats]:
    """Output rows, the scan's inputs, and the two states afterwards.

    Shapes: n [T,D], conv [channels,C-1], state [H,K,D] -> [T,D].
    """
    sizes = _sizes(config)
    rows, share = len(n), sizes.value_heads // sizes.key_heads
    p = project(config, w, at, n)
    y = causal_conv(p.u, w[f"{at}conv1d.weight"][:, 0], conv)
    keys = sizes.key_heads * sizes.key_width
    q = unit_heads(y[:, :keys].reshape(rows, sizes.key_heads, -1)) * sizes.key_width**-0.5
    k = unit_heads(y[:, keys : 2 * keys].reshape(rows, sizes.key_heads, -1))
    v = y[:, 2 * keys :].reshape(rows, sizes.value_heads, -1)
    # Value head h reads key head h // share.
    q, k = np.repeat(q, share, axis=1), np.repeat(k, share, axis=1)
    g = decay(p.a, w[f"{at}A_log"], w[f"{at}dt_bias"])
    scan = Scan(p.u, q, k, v, g, 1.0 / (1.0 + np.exp(-p.b)))
    o, after = recurrence(q, k, v, g, scan.beta, state)
    normed = rms_norm(o, w[f"{at}norm.weight"], eps=config.eps)
    gated = normed * p.z / (1.0 + np.exp(-p.z))
    out = gated.reshape(rows, -1) @ w[f"{at}out_proj.weight"].T
    return out, scan, conv_tail(p.u, conv), after


def _sizes(config: QwenConfig) -> Linear:
    if config.linear is None:
        raise ValueError("a dense target has no linear layers")
    return config.linear
