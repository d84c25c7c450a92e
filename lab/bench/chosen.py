"""What is timed: the one declaration that `dsv4-lab bench` and `pytest --benchmark-only` read.

A kernel is timed at the sizes that the model gives it in decoding and verifying; larger models and
adversarial contents are for contracts. A kernel without a line here is timed at the case that moves
the most bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dsv4 import registry
from dsv4.axes import Shape
from dsv4.errors import SpecError
from dsv4.runtime.launch import bind_shape
from dsv4.spec import KernelSpec
from lab.cases import Case, array_shape, cases, scalars_of
from lab.cases.select import require_known, select

Work = list[tuple[KernelSpec, Case]]

_LINEARS: Final = ("wkv", "wq_a", "wq_b", "wo_b", "indexer wq_b", "shared gate")
_ROWS: Final = ("decode", "verify")
_ATTENTION: Final = ("decode", "verify", "verify all heads", "coarse")
_ISLANDS: Final = ("gate", "verify", "head mixes", "verify of mixes", "fine compressor",
                   "coarse compressor")  # fmt: skip
# Case names by kernel or family; a kernel's own line comes before its family's.
BENCHED: Final[Mapping[str, Sequence[str]]] = {
    "act_quant_fp8": ("hidden", "verify"),
    "argmax": ("vocabulary", "verify"),
    "attention": _ATTENTION,
    "attention_decode": _ATTENTION,
    "attention_sink_join": (*_ROWS, "coarse"),
    "attention_sink_join_f32": (*_ROWS, "coarse"),
    "cast": ("hidden",),
    "combine": _ROWS,
    "compressor_pool": ("prefill", "coarse prefill"),
    "compressor_pool_at": ("decode", "verify", "verify keys", "coarse verify"),
    "confidence": ("vocabulary",),
    "dequant": ("wkv", "indexer wq_b", "w1", "w2"),
    "experts": ("experts",),
    "finish": _ROWS,
    "hadamard": ("verify",),
    "hyper": (*_ROWS, "head"),
    "hyper_step": _ROWS,
    "index_lists": ("verify", "coarse verify"),
    "indexer": (*_ROWS, "decode 4096", "decode 32768", "decode 262144"),
    "indexer_select": (*_ROWS, "decode 32768", "verify 32768", "longest"),
    "island_dots": _ISLANDS,
    "linear_bf16": _LINEARS,
    "linear_fp8": (*_LINEARS, "shared down", "wo_a group", "wo_a"),
    "linear_fp4": ("gate", "down", "decode", "gates", "downs"),
    "lm_head": ("shard", "shard, verify", "vocabulary"),
    "markov": ("vocabulary", "whole draft"),
    "movement": (*_ROWS, "vocabulary"),
    "project": _ROWS,
    "queries": ("wq_b",),
    "rms_norm": _ROWS,
    "roof": ("stream",),
    "router": _ROWS,
    "router_gate": _ROWS,
    "schedule": ("verify",),
    "topk": (*_ROWS, "decode 32768", "longest"),
}


def benched(kernel: str) -> list[Case]:
    """The cases that a kernel is timed at; never none."""
    spec = registry.spec(kernel)
    names = BENCHED.get(kernel, BENCHED.get(spec.family, ()))
    found = [case for case in cases(kernel) if case.name in names]
    return found or [max(cases(kernel), key=lambda case: counted_bytes(spec, case))]


def counted_bytes(spec: KernelSpec, case: Case) -> int:
    """The bytes that a case must move, as the declaration counts them."""
    return spec.work(shape_of(spec, case)).size_bytes


def shape_of(spec: KernelSpec, case: Case) -> Shape:
    """The bound axes, scalars and options of a case."""
    named = scalars_of(spec, case)
    shapes = {a.name: array_shape(a, {**case.axes, **named}) for a in spec.arrays}
    return bind_shape(spec, shapes, named)


def plan(
    kernels: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    names: Sequence[str] = (),
    on_host: bool = False,
) -> Work:
    """The kernels and cases to time.

    With patterns or names every case of the kernels can be asked for; without, it is `benched`, of
    which a host times the quick ones. Errors: SpecError for what there is not.
    """
    specs = registry.match(kernels)
    if patterns or names:
        require_known([(s, cases(s.name)) for s in specs], patterns, names)
        return [
            (spec, case)
            for spec in specs
            for case in select(cases(spec.name), patterns, names, "stress", spec=spec)
        ]
    return [
        (spec, case)
        for spec in specs
        for case in benched(spec.name)
        if not on_host or case.level == "quick"
    ]


def with_options(spec: KernelSpec, case: Case, options: Mapping[str, int]) -> Case:
    """The case under other build options. Errors: SpecError for a value that there is not."""
    known = {option.name: option.choices for option in spec.options}
    for name, value in options.items():
        if value not in known.get(name, ()):
            raise SpecError(
                f"{spec.name} was to be timed with {name}={value}\n"
                f"  its options are {known or 'none'}\n  declared in {spec.declared_at}\n"
                "  choose one of these, or other kernels"
            )
    content = {**case.axes, **case.values, **options}
    return Case(case.name, level=case.level, check=case.check, pad=case.pad, **content)
