"""Rewrites a preprocessed `.cu` into C++ that a host compiler takes.

The preprocessor has already resolved includes, macros and `#if`, so what is left of CUDA is two
words: `__global__` marks the kernels, and `__shared__` becomes a static in a section of its own
that the runtime can find, fill and watch. Line markers keep every line where it was.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from dsv4.errors import CompileError, SpecError

# `used`: the runtime fills the section, so nothing may be concluded from what the kernel writes.
_STATIC_SHARED = 'static __attribute__((used, section("dsv4_shared")))'
_EXTERN_SHARED = re.compile(
    r"\bextern\s+__shared__\s+((?:__attribute__\s*\(\([^;]*?\)\)\s*)*)([\w:\s]+?)\s*"
    r"((?:__attribute__\s*\(\([^;]*?\)\)\s*)*)\b(\w+)\s*\[\s*\]\s*;"
)
_PREFIX = "host_kernel_"
_SHARED = re.compile(r"\b(?:static\s+)?__shared__\b")
_KERNEL = re.compile(
    r'\bextern\s+"C"\s+__global__\b((?:\s|#[^\n]*\n)*void\b(?:\s|#[^\n]*\n)*)(\w+)\s*\('
)
_GLOBAL = re.compile(r"\b__global__\b")


def define_lines(defines: Mapping[str, int | float | str]) -> str:
    """The `#define NAME VALUE` lines of the build constants, sorted by name.

    A float becomes a C++ double literal that reads back as the same number; a bool becomes 0 or 1.

    Errors: SpecError for a name that is no identifier and for a float that is not finite.
    """
    lines = []
    for name, value in sorted(defines.items()):
        if not name.isidentifier() or not name.isascii():
            raise SpecError(
                f"build constant {name!r}: not a C identifier\n"
                "  found in the mapping of build constants\n"
                "  use letters, digits and underscores"
            )
        if isinstance(value, float):
            if not math.isfinite(value):
                raise SpecError(
                    f"build constant {name}: {value} has no C++ literal\n"
                    "  found in the mapping of build constants\n"
                    "  use INF_F32 or NAN_F32 of common/math.cuh in the kernel"
                )
            lines.append(f"#define {name} {float(value)!r}")
        elif isinstance(value, str):
            lines.append(f"#define {name} {value}")
        else:
            lines.append(f"#define {name} {int(value)}")
    return "".join(f"{line}\n" for line in lines)


def rewrite(preprocessed: str, source: Path) -> str:
    """The C++ text, with a table of the kernels at its end.

    Errors: CompileError when there is no `extern "C" __global__ void NAME(`, and for dynamic shared
    memory that is not declared as `extern __shared__ TYPE NAME[];`.
    """
    names = tuple(dict.fromkeys(match[2] for match in _KERNEL.finditer(preprocessed)))
    if not names:
        raise CompileError(
            f"{source.name}: no kernel was found\n"
            '  looked for `extern "C" __global__ void [__launch_bounds__(...)] NAME(...)`\n'
            f"  in {source}\n  write the kernel that way, or pass another file"
        )
    # The C library has functions called div, index or select; a kernel may be called so too.
    text = _KERNEL.sub(lambda match: f'extern "C" {match[1]}{_PREFIX}{match[2]}(', preprocessed)
    text = _GLOBAL.sub("", text)
    text = _EXTERN_SHARED.sub(_point_at_dynamic_shared, text)
    if re.search(r"\bextern\s+__shared__\b", text):
        raise CompileError(
            f"{source.name}: a declaration of dynamic shared memory was not understood\n"
            f"  in {source}\n"
            "  write `extern __shared__ [__align__(16)] TYPE NAME[];` as a declaration of its own"
        )
    text = _SHARED.sub(_STATIC_SHARED, text)
    exports = "".join(
        f"static const ::host::Export host_export_{name}"
        f'{{"{name}", &::host::Trampoline<&::{_PREFIX}{name}>::call, '
        f"::host::Trampoline<&::{_PREFIX}{name}>::signature.text}};\n"
        for name in names
    )
    return f"{text}\n{exports}"


def _point_at_dynamic_shared(match: re.Match[str]) -> str:
    element = match[2].strip()
    lines = "\n" * match[0].count("\n")
    return (
        f"{element}* const {match[4]} = reinterpret_cast<{element}*>(dsv4_dynamic_shared);{lines}"
    )
