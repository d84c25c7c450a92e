"""The residual streams around a sub-block, before a head, and at the model's entry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dsv4.engine import hostmath
from dsv4.engine.products import island
from dsv4.engine.rows import Rows
from dsv4.engine.weights import ExitWeights, HyperWeights
from dsv4.kernels.hyper import (
    hyper_collapse,
    hyper_head_gate,
    hyper_norm_scale,
    hyper_norm_scale_f32,
    hyper_post,
    hyper_post_pre_norm,
    hyper_post_pre_norm_f32,
    hyper_pre,
    hyper_pre_f32,
    hyper_split,
)
from dsv4.kernels.hyper_step import (
    hyper_step_entry,
    hyper_step_exit,
    hyper_step_open,
    hyper_step_streams,
)
from dsv4.kernels.movement import movement_embed, movement_repeat
from dsv4.kernels.rms_norm import rms_norm, rms_norm_f32
from dsv4.spec import BF16, E4M3, F32, F64, I32


@dataclass(frozen=True, slots=True)
class Open:
    """What coefficients are made of: scaled mixes [T,C], and what those are weighed with."""

    mix: Any
    hyper: HyperWeights


@dataclass(frozen=True, slots=True)
class Mixing:
    """How a sub-block's output comes back into the streams: post [T,M], comb [T,M,M].

    turn: which of two sets of buffers they lie in; one is read while the next is written. open:
    what the sub-block makes them of, in its first launch; None where they are made already.
    """

    post: Any
    comb: Any
    turn: int
    open: Open | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A sub-block's input as products take it: wide bf16 [T,D], codes [T,D], scales [T,D/128]."""

    wide: Any
    codes: Any
    scales: Any


def taken_input(run: Rows) -> Taken:
    """Where a fused step has the input of the sub-block that it entered last."""
    d = run.config.dim
    return Taken(
        run.buffer("x bf16", d, fmt=BF16),
        run.buffer("x codes", d, fmt=E4M3),
        run.buffer("x scales", d // 128, fmt=F32),
    )


def norm(run: Rows, x: Any, gain: Any, out: Any) -> Any:
    """Rows over their root mean square, times the gain; sums as the arms say."""
    kernel = rms_norm_f32 if run.arms.chains_f32 else rms_norm
    run.tape.launch(kernel, x, gain, out=out, eps=run.config.norm_eps)
    return out


def entry_streams(run: Rows, out: Any) -> Any:
    """out [T,M,D]: every stream is the token's embedding."""
    c, embedded = run.config, run.buffer("embedded", run.config.dim)
    run.tape.launch(movement_embed, run.stage.embed, run.tokens, out=embedded)
    run.tape.launch(movement_repeat, embedded, out=out)
    assert out.shape[1:] == (c.hc_mult, c.dim)
    return out


def enter(run: Rows, hyper: HyperWeights, gain: Any, streams: Any) -> tuple[Any, Mixing]:
    """(the sub-block's normalised input [T,D], how its output comes back).

    A fused step has one launch for it, and leaves the coefficients open.
    """
    c = run.config
    if run.fused:
        x, mixing, outputs = _entered(run, hyper, 0)
        run.tape.launch(hyper_step_streams, streams, *_weights(hyper, gain), **outputs)
        return x, mixing
    mix = run.buffer("mix", c.mixing_rows)
    pre, mixing = run.buffer("pre", c.hc_mult), _mixing(run, 0)
    post, comb = mixing.post, mixing.comb
    y, x = run.buffer("collapsed", c.dim), run.buffer("x", c.dim)
    island(run, streams.reshape(run.rows, -1), hyper.fn, mix)
    if run.arms.decode_path.host_math:
        _norm_scale(run, streams, mix)
        device = run.stage.device

        def split() -> None:
            parts = hostmath.split_mixing(
                *(device.to_numpy(a) for a in (mix, hyper.scale, hyper.base)),
                streams=c.hc_mult, iterations=c.hc_sinkhorn_iters, eps=c.hc_eps,
            )  # fmt: skip
            for array, values in zip((pre, post, comb), parts, strict=True):
                device.write(array, values)

        run.tape.call("host split", split)
        run.tape.launch(hyper_collapse, streams, pre, out=y)
    else:
        run.tape.launch(
            hyper_pre_f32 if run.arms.chains_f32 else hyper_pre,
            streams, mix, hyper.scale, hyper.base, pre=pre, post=post, comb=comb, y=y,
            mix_eps=c.norm_eps, eps=c.hc_eps, iterations=c.hc_sinkhorn_iters,
        )  # fmt: skip
    norm(run, y, gain, x)
    return x, mixing


def leave(run: Rows, z: Any, streams: Any, mixing: Mixing, out: Any) -> Any:
    """The next streams, from a sub-block's output and the streams that entered it."""
    run.tape.launch(hyper_post, z, streams, mixing.post, mixing.comb, out=out)
    return out


def enter_tokens(run: Rows, hyper: HyperWeights, gain: Any, out: Any) -> tuple[Any, Mixing]:
    """`entry_streams` into out [T,M,D], and `enter` from there, in one launch."""
    x, mixing, outputs = _entered(run, hyper, 0)
    weights = _weights(hyper, gain)
    run.tape.launch(hyper_step_entry, run.stage.embed, run.tokens, *weights, x_next=out, **outputs)
    return x, mixing


def pass_on(
    run: Rows, z: Any, streams: Any, mixing: Mixing, hyper: HyperWeights, gain: Any, out: Any
) -> tuple[Any, Mixing]:
    """`leave` into `out`, then `enter` the next sub-block from there.

    For a few rows one launch does both, with the same bytes.
    """
    c, arms = run.config, run.arms
    alike = arms.dots_f32 == arms.chains_f32
    if not run.few or arms.decode_path.host_math or not alike:
        leave(run, z, streams, mixing, out)
        return enter(run, hyper, gain, out)
    left, weights = (z, streams, mixing.post, mixing.comb), _weights(hyper, gain)
    if run.fused:
        x, following, outputs = _entered(run, hyper, 1 - mixing.turn)
        run.tape.launch(hyper_step_open, *left, *weights, x_next=out, **outputs)
        return x, following
    following, x = _mixing(run, 1 - mixing.turn), run.buffer("x", c.dim)
    run.tape.launch(
        hyper_post_pre_norm_f32 if arms.chains_f32 else hyper_post_pre_norm,
        *left, *weights, x_next=out, pre=run.buffer("pre", c.hc_mult), post_next=following.post,
        comb_next=following.comb, y=x, **_sums(run, c.mixing_rows, "mix"),
        iterations=c.hc_sinkhorn_iters,
    )  # fmt: skip
    return x, following


def close(run: Rows, mixing: Mixing) -> None:
    """Coefficients that are open, by a launch for them alone: where no other launch makes them."""
    if mixing.open is None:
        return
    c, hyper = run.config, mixing.open.hyper
    run.tape.launch(
        hyper_split, mixing.open.mix, hyper.scale, hyper.base, pre=run.buffer("pre", c.hc_mult),
        post=mixing.post, comb=mixing.comb, eps=c.hc_eps, iterations=c.hc_sinkhorn_iters,
    )  # fmt: skip


def exit_rows(run: Rows, exit: ExitWeights, streams: Any, out: Any) -> Any:
    """out [T,D]: the streams collapsed and normalised for a head."""
    c = run.config
    y = run.buffer("collapsed", c.dim)
    if run.fused:
        run.tape.launch(
            hyper_step_exit, streams, exit.hyper.fn, exit.hyper.scale, exit.hyper.base, exit.norm,
            collapsed=y, y=out, **_sums(run, c.hc_mult, "exit"),
        )  # fmt: skip
        return out
    mix, pre = run.buffer("exit mix", c.hc_mult), run.buffer("pre", c.hc_mult)
    island(run, streams.reshape(run.rows, -1), exit.hyper.fn, mix)
    _norm_scale(run, streams, mix)
    scale, base = exit.hyper.scale, exit.hyper.base
    if run.arms.decode_path.host_math:
        device = run.stage.device

        def gate() -> None:
            values = hostmath.head_gate(
                *(device.to_numpy(a) for a in (mix, scale, base)), eps=c.hc_eps
            )
            device.write(pre, values)

        run.tape.call("host head gate", gate)
    else:
        run.tape.launch(hyper_head_gate, mix, scale, base, out=pre, eps=c.hc_eps)
    run.tape.launch(hyper_collapse, streams, pre, out=y)
    return norm(run, y, exit.norm, out)


def _weights(hyper: HyperWeights, gain: Any) -> tuple[Any, ...]:
    """What a launch that enters a sub-block takes last."""
    return hyper.fn, hyper.scale, hyper.base, gain


def _entered(run: Rows, hyper: HyperWeights, turn: int) -> tuple[Any, Mixing, dict[str, Any]]:
    """(input, open coefficients, all that a launch of a fused step enters with)."""
    c, given = run.config, taken_input(run)
    x, mix = run.buffer("x", c.dim), run.buffer("mix", c.mixing_rows)
    outputs = dict(
        mix=mix, y=x, wide=given.wide, codes=given.codes, scales=given.scales,
        **_sums(run, c.mixing_rows, "mix"),
    )  # fmt: skip
    return x, replace(_mixing(run, turn), open=Open(mix, hyper)), outputs


def _sums(run: Rows, rows: int, name: str) -> dict[str, Any]:
    """Scratch of a launch that multiplies all streams with so many rows, and its epsilons."""
    c = run.config
    parts = -(-c.hc_mult * c.dim // 256)
    fmt = F32 if run.arms.chains_f32 else F64
    tickets = run.workspace.filled(f"{name} ticket", 0, run.workspace.rows, fmt=I32)
    return dict(
        partial=run.buffer(f"{name} parts", rows + 1, parts, fmt=fmt),
        ticket=tickets[: run.rows],
        mix_eps=c.norm_eps,
        eps=c.hc_eps,
        norm_eps=c.norm_eps,
    )


def _mixing(run: Rows, turn: int) -> Mixing:
    c = run.config
    post = run.buffer(f"post {turn}", c.hc_mult)
    return Mixing(post, run.buffer(f"comb {turn}", c.hc_mult, c.hc_mult), turn)


def _norm_scale(run: Rows, streams: Any, mix: Any) -> None:
    kernel = hyper_norm_scale_f32 if run.arms.chains_f32 else hyper_norm_scale
    run.tape.launch(kernel, streams, mix, mix_eps=run.config.norm_eps)
