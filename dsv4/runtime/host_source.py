"""Rewrites a preprocessed `.cu` into C++ that a host compiler takes.

The preprocessor has already resolved includes, macros and `#if`, so what is left of CUDA is two
words: `__global__` marks the kernels, and `__shared__` becomes a static in a section of its own that
the runtime can find, fill and watch. Line markers keep every line where it was.
"""

import re
from pathlib import Path

from dsv4.errors import CompileError

_STATIC_SHARED = 'static __attribute__((section("dsv4_shared")))'
_EXTERN_SHARED = re.compile(
    r"\bextern\s+__shared__\s+((?:__attribute__\s*\(\([^;]*?\)\)\s*)*)([\w:\s]+?)\s*"
    r"((?:__attribute__\s*\(\([^;]*?\)\)\s*)*)\b(\w+)\s*\[\s*\]\s*;"
)
_SHARED = re.compile(r"\b(?:static\s+)?__shared__\b")
_KERNEL = re.compile(r'\bextern\s+"C"\s+__global__\b((?:\s|#[^\n]*\n)*void\b(?:\s|#[^\n]*\n)*)(\w+)\s*\(')
_KERNEL_BEFORE_EXTERN = re.compile(r"\b__global__\b")


def rewrite(preprocessed: str, source: Path) -> tuple[str, tuple[str, ...]]:
    """The C++ text and the names of its kernels, in the order of the file.

    Errors: CompileError when there is no `extern "C" __global__ void NAME(`, and for dynamic shared
    memory that is not declared as `extern __shared__ TYPE NAME[];`.
    """
    names = tuple(match[2] for match in _KERNEL.finditer(preprocessed))
    if not names:
        raise CompileError(
            f"{source.name}: no kernel was found\n"
            '  a kernel is written `extern "C" __global__ void [__launch_bounds__(...)] name(...)`\n'
            f"  in {source}\n  write the kernel that way, or pass another file"
        )
    text = _KERNEL.sub(lambda match: f'extern "C" {match[1]}{match[2]}(', preprocessed)
    text = _KERNEL_BEFORE_EXTERN.sub("", text)
    text = _EXTERN_SHARED.sub(_point_at_dynamic_shared, text)
    if re.search(r"\bextern\s+__shared__\b", text):
        raise CompileError(
            f"{source.name}: a declaration of dynamic shared memory was not understood\n"
            f"  in {source}\n"
            "  write `extern __shared__ TYPE NAME[];` on its own, with __align__ before or after TYPE"
        )
    text = _SHARED.sub(_STATIC_SHARED, text)
    exports = "".join(
        f"static const ::host::Export host_export_{name}"
        f'{{"{name}", &::host::Trampoline<&::{name}>::call, '
        f"::host::Trampoline<&::{name}>::signature.text}};\n"
        for name in names
    )
    return f"{text}\n{exports}", names


def _point_at_dynamic_shared(match: re.Match[str]) -> str:
    element = match[2].strip()
    lines = "\n" * match[0].count("\n")
    return f"{element}* const {match[4]} = reinterpret_cast<{element}*>(dsv4_dynamic_shared);{lines}"
