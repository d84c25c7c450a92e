"""The switches of the engine: environment and options, read once into arms, or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from dsv4.engine.arms import (
    PATHS,
    VERIFY_ROWS,
    ActQuantVariant,
    Arms,
    DecodePath,
    ExpertArm,
    path_name,
)
from dsv4.errors import Refusal

# The first value is the default on the device path; None has no default word.
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "DSV4_DECODE_PATH": tuple(PATHS),
    "DSV4_EXPERT_ARM": ("native", "bf16_dequant"),
    "DSV4_DENSE_ARM": ("fp8", "bf16"),
    "DSV4_DENSE_INPUT": ("bf16", "fp8"),
    "DSV4_DOTS_ARM": ("f32x", "f32", "f64"),
    "DSV4_DSPARK_HEAD_ARM": ("f32x", "f64"),
    "DSV4_DSPARK_CHAIN": ("device", "host"),
    "DSV4_DRAFTER": ("off", "mtp", "dspark"),
    "DSV4_VT": ("off", "slot"),
    "DSV4_PROFILE": ("off", "sync", "nvtx", "both"),
    "DSV4_QUANTISERS": ("on", "off"),
    "DSV4_VARIANT": tuple(v.value for v in ActQuantVariant),
    "DSV4_DEVICE_GEMM": ("gemv", "cublas"),
    "DSV4_PREFILL_GEMM": ("library", "rows"),
    "DSV4_GRAPHS": ("auto", "on", "off"),
    "DSV4_BRANCHES": ("off", "on"),
    "DSV4_FUSED": ("auto", "on", "off"),
    "DSV4_DEPENDENT_LAUNCH": ("auto", "on", "off"),
    "DSV4_PARALLEL": ("layers", "tensor"),
}
_NUMBERS: Final = (
    "DSV4_SPEC_DEPTH",
    "DSV4_SPLIT_AT",
    "DSV4_VT_TAU",
    "DSV4_VT_FLOOR",
    "DSV4_PREFILL_CHUNK",
)
_PREFILL_CHUNK: Final = 512


def resolve_arms(
    environment: Mapping[str, str] | None = None, /, **overrides: str | int | float | None
) -> Arms:
    """The arms that the environment asks for, options of the same meaning overriding it.

    An option is a variable's name in lower case without its prefix, such as `dots_arm="f64"`;
    None does not override. An empty variable is an unset one.
    Errors: Refusal naming the variable, for unknown values and for arms that exclude each other.
    """
    chosen = _chosen(os.environ if environment is None else environment, overrides)
    path = PATHS[_word(chosen, "DSV4_DECODE_PATH")]
    quantisers = _word(chosen, "DSV4_QUANTISERS") == "on"
    expert = _expert_arm(chosen, path, quantisers)
    dense_fp8 = _dense_arm(chosen, path, quantisers)
    dots = _dots_arm(chosen, path)
    dense_input = _word(chosen, "DSV4_DENSE_INPUT")
    if dense_input == "fp8" and not quantisers:
        raise _excluded("DSV4_DENSE_INPUT=fp8", "DSV4_QUANTISERS=off switches every quantiser off")
    graphs, profile = _word(chosen, "DSV4_GRAPHS"), _word(chosen, "DSV4_PROFILE")
    if graphs == "on":
        host = path.host_math or not quantisers
        if host:
            raise _excluded("DSV4_GRAPHS=on", "a graph holds nothing that the host looks at")
        if profile != "off":
            raise _excluded("DSV4_GRAPHS=on", "DSV4_PROFILE looks between its launches")
    branches = _word(chosen, "DSV4_BRANCHES") == "on"
    if branches and _word(chosen, "DSV4_DEPENDENT_LAUNCH") == "on":
        raise _excluded("DSV4_DEPENDENT_LAUNCH=on", "DSV4_BRANCHES=on waits for several launches")
    if _word(chosen, "DSV4_PARALLEL") == "tensor":
        if _word(chosen, "DSV4_DRAFTER") != "off":
            drafter = f"DSV4_DRAFTER={chosen['DSV4_DRAFTER']}"
            raise _excluded(drafter, "DSV4_PARALLEL=tensor shares the trunk and has no drafter")
        if "DSV4_SPLIT_AT" in chosen:
            split = f"DSV4_SPLIT_AT={chosen['DSV4_SPLIT_AT']}"
            raise _excluded(split, "DSV4_PARALLEL=tensor gives every device all layers")
    vt = _word(chosen, "DSV4_VT")
    for orphan in ("DSV4_VT_TAU", "DSV4_VT_FLOOR"):
        if vt == "off" and orphan in chosen:
            raise _excluded(f"{orphan}={chosen[orphan]}", "it belongs to DSV4_VT=slot")
    return Arms(
        decode_path=path,
        expert=expert,
        dense_fp8=dense_fp8,
        dense_input_fp8=dense_input == "fp8",
        dots_f32=dots in ("f32", "f32x"),
        chains_f32=dots == "f32x",
        dspark_head_f32=_word(chosen, "DSV4_DSPARK_HEAD_ARM") == "f32x",
        dspark_chain=_word(chosen, "DSV4_DSPARK_CHAIN"),
        device_gemm=_word(chosen, "DSV4_DEVICE_GEMM"),
        prefill_gemm=_word(chosen, "DSV4_PREFILL_GEMM"),
        drafter=_word(chosen, "DSV4_DRAFTER"),
        spec_depth=_whole(chosen, "DSV4_SPEC_DEPTH", 1, VERIFY_ROWS),
        vt=vt,
        vt_tau=_share(chosen, "DSV4_VT_TAU", 0.5),
        vt_floor=_whole(chosen, "DSV4_VT_FLOOR", 0, 4) or 0,
        split_at=_splits(chosen),
        variant=ActQuantVariant(_word(chosen, "DSV4_VARIANT")),
        quantisers=quantisers,
        profile=profile,
        prefill_chunk=_whole(chosen, "DSV4_PREFILL_CHUNK", VERIFY_ROWS, 8192) or _PREFILL_CHUNK,
        graphs=graphs,
        branches=branches,
        fused=_word(chosen, "DSV4_FUSED"),
        dependent_launch="off" if branches else _word(chosen, "DSV4_DEPENDENT_LAUNCH"),
        parallel=_word(chosen, "DSV4_PARALLEL"),
    )


def resolve_dense_arm(value: str | None, on_device: bool) -> bool:
    """Whether decode reads FP8 matrices as stored.

    Errors: Refusal for unknown words, or for FP8 on the legacy path.
    """
    if not value:
        return on_device
    _known("DSV4_DENSE_ARM", value)
    if value == "fp8" and not on_device:
        raise _excluded("DSV4_DENSE_ARM=fp8", "DSV4_DECODE_PATH=legacy multiplies bf16 matrices")
    return value == "fp8"


def _chosen(
    environment: Mapping[str, str], overrides: Mapping[str, str | int | float | None]
) -> dict[str, str]:
    known = (*_WORDS, *_NUMBERS)
    chosen = {name: environment[name].strip() for name in known if environment.get(name)}
    for option, value in overrides.items():
        name = f"DSV4_{option.upper()}"
        if name not in known:
            raise Refusal(
                f"an engine switch {option!r} was given\n  there are"
                f" {', '.join(n.removeprefix('DSV4_').lower() for n in known)}\n"
                "  in dsv4.engine.arms\n  give one of them"
            )
        if value is not None:
            chosen[name] = str(value)
    for name in _WORDS:
        if name in chosen:
            _known(name, chosen[name])
    return chosen


def _word(chosen: Mapping[str, str], name: str) -> str:
    return chosen.get(name, _WORDS[name][0])


def _known(name: str, value: str) -> None:
    if value not in _WORDS[name]:
        raise Refusal(
            f"{name}={value} was asked for\n  it can be {', '.join(_WORDS[name])}\n"
            f"  in the environment or the options\n  set {name} to one of these, or unset it"
        )


def _expert_arm(chosen: Mapping[str, str], path: DecodePath, quantisers: bool) -> ExpertArm:
    asked = chosen.get("DSV4_EXPERT_ARM")
    if not quantisers:
        if asked == "native":
            raise _excluded(
                "DSV4_EXPERT_ARM=native",
                "its inputs are FP8 codes, and DSV4_QUANTISERS=off allows none",
            )
        return ExpertArm.BF16_DEQUANT
    arm = ExpertArm(_word(chosen, "DSV4_EXPERT_ARM"))
    if path.on_device and arm is not ExpertArm.NATIVE:
        raise _excluded(
            f"DSV4_EXPERT_ARM={arm.value}",
            f"DSV4_DECODE_PATH={path_name(path)} chooses experts on the device, by their codes",
        )
    return arm


def _dense_arm(chosen: Mapping[str, str], path: DecodePath, quantisers: bool) -> bool:
    asked = chosen.get("DSV4_DENSE_ARM")
    if not quantisers:
        if asked == "fp8":
            raise _excluded(
                "DSV4_DENSE_ARM=fp8", "DSV4_QUANTISERS=off multiplies float32 by bf16 matrices"
            )
        return False
    return resolve_dense_arm(asked, path.on_device)


def _dots_arm(chosen: Mapping[str, str], path: DecodePath) -> str:
    asked = chosen.get("DSV4_DOTS_ARM")
    if path.on_device:
        return asked or "f32x"
    if asked in ("f32", "f32x"):
        raise _excluded(f"DSV4_DOTS_ARM={asked}", "DSV4_DECODE_PATH=legacy sums in float64")
    return "f64"


def _whole(chosen: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    if name not in chosen:
        return None
    value = chosen[name]
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise _not_a(name, value, f"a whole number from {least} to {most}")
    return int(value)


def _share(chosen: Mapping[str, str], name: str, default: float) -> float:
    if name not in chosen:
        return default
    try:
        value = float(chosen[name])
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise _not_a(name, chosen[name], "a number between 0 and 1")
    return value


def _splits(chosen: Mapping[str, str]) -> tuple[int, ...]:
    value = chosen.get("DSV4_SPLIT_AT", "")
    parts = [p.strip() for p in value.split(",")] if value else []
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise _not_a("DSV4_SPLIT_AT", value, "layer numbers with commas between them")
    return tuple(int(p) for p in parts)


def _not_a(name: str, value: str, wanted: str) -> Refusal:
    return Refusal(
        f"{name}={value} was asked for\n  it must be {wanted}\n"
        f"  in the environment or the options\n  correct {name}, or unset it"
    )


def _excluded(asked: str, because: str) -> Refusal:
    name = asked.partition("=")[0]
    return Refusal(
        f"{asked} was asked for\n  {because}\n  in the environment or the options\n"
        f"  unset {name}, or change the other one"
    )
