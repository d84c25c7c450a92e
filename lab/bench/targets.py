"""What is to be reached on one H200, and each floor: bytes from shapes over the measured roof.

The one table of targets. A floor is never a number copied from somewhere: for a kernel's case it is
what its declaration counts, for experts, layers and steps what `floors` counts from the model's
configuration. The roof comes from the run that is told against the target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsv4 import registry
from dsv4.checkpoint.config import ModelConfig
from lab.bench.chosen import counted_bytes
from lab.bench.floors import step_bytes
from lab.cases import cases

Result = Mapping[str, Any]
FLASH: Final = "mint:flash"


@dataclass(frozen=True, slots=True)
class Part:
    """A timed thing that a target consists of: a kernel's case with these axes."""

    kernel: str
    case: str
    axes: Mapping[str, int] = field(default_factory=dict)

    def is_it(self, result: Result) -> bool:
        """Whether a result is of this part, in our own first arm."""
        held = result.get("axes") or {}
        return (
            result["kernel"] == self.kernel
            and result["case"] == self.case
            and all(held.get(k) == v for k, v in self.axes.items())
            and not result.get("arm")
        )

    @property
    def words(self) -> str:
        """The kernel, the case and the axes that choose it among cases of that name."""
        return " ".join([self.kernel, self.case, *(f"{k}={v}" for k, v in self.axes.items())])

    @property
    def size_bytes(self) -> int:
        """What the declaration counts for this part."""
        spec = registry.spec(self.kernel)
        case = next(
            c
            for c in cases(self.kernel)
            if c.name == self.case and self.axes.items() <= c.axes.items()
        )
        return counted_bytes(spec, case)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to be reached.

    most_s: at most so long. least_fraction: at least that share of the roof of reading. most:
    at most that many (launches) or times as long (`over`). rows: of a step. floor: its bytes, from
    the configuration; None for what its parts declare. formula: the floor in words. over: a part
    whose time the first part's is divided by. stretch: hoped for, not promised.
    """

    what: str
    parts: tuple[Part, ...] = ()
    most_s: float | None = None
    least_fraction: float | None = None
    most: float | None = None
    over: Part | None = None
    floor: Callable[[ModelConfig], float] | None = None
    formula: str = "bytes that the declaration counts"
    stretch: bool = False
    step: bool = False

    def floor_bytes(self, config: ModelConfig) -> float:
        """The bytes that it cannot do without; 0 where none are counted."""
        if self.floor is not None:
            return self.floor(config)
        return float(sum(part.size_bytes for part in self.parts)) if not self.over else 0.0

    @property
    def profiled(self) -> tuple[Part, ...]:
        """The launches whose counters tell what limits it; none for a step, which is many."""
        return self.parts if self.over is None else (*self.parts, self.over)

    def words(self) -> str:
        """What is to be reached."""
        said = []
        if self.most_s is not None and self.step:
            said.append(f"at least {1 / self.most_s:g} tokens/s")
        elif self.most_s is not None:
            said.append(f"at most {1e6 * self.most_s:.3g} us")
        if self.least_fraction is not None:
            said.append(f"at least {100 * self.least_fraction:g} % of the roof")
        if self.most is not None:
            said.append(f"at most {self.most:g}" + (" times one row" if self.over else ""))
        return ", ".join(said) + (" (stretch)" if self.stretch else "")


@dataclass(frozen=True, slots=True)
class Reached:
    """A target beside what was measured. value: seconds, a count or a ratio; None without all."""

    target: Target
    floor_bytes: float
    value: float | None
    fraction: float | None
    met: bool | None


def cached_row_bytes(c: ModelConfig) -> int:
    """A cached row at its smallest: FP8 channels with a scale byte for each 64, rotated ones bf16.

    It takes 584 bytes with the padding to a multiple of 8 that caches of such rows have.
    """
    plain = c.head_dim - c.rope_head_dim
    return -(-(plain + plain // 64 + 2 * c.rope_head_dim) // 8) * 8


def index_key_bytes(c: ModelConfig) -> int:
    """A key of the index at its smallest: FP8 channels and one float32 scale."""
    return c.index_head_dim + 4


def _experts(rows: int) -> tuple[Part, ...]:
    return tuple(Part(f"experts_mx_{half}", "experts", {"T": rows}) for half in ("gate_up", "down"))


def _rows(kernel: str, case: str, rows: int) -> Part:
    return Part(kernel, case, {"M": rows})


def _with_the_shared_one(rows: int) -> float:
    """The targets count chosen experts alone; the shared one may take as long for a byte."""
    whole = sum(part.size_bytes for part in _experts(rows))
    (hidden,) = (c for c in cases("experts_mx_down") if c.name == "experts" and c.axes["T"] == rows)
    shared = 3 * hidden.axes["N"] * hidden.axes["K"]
    return whole / (whole - shared)


_STEP_US: Final = "sum over stored tensors: all of the trunk and head once, 6 of the experts"
_KEYS_FORMULA: Final = "keys x (1 byte a channel and a scale of 4)"
TARGETS: Final[Sequence[Target]] = (
    Target("wq_b, FP8, one row", (_rows("linear_fp8", "wq_b", 1),), 8.8e-6, 0.85),
    Target(
        "wo_a, FP8, one row, 8 groups of 1024 x 4096",
        (Part("linear_fp8_grouped_bf16", "wo_a", {"M": 1}),),
        8.8e-6,
        0.85,
    ),
    Target("wo_b, FP8, one row", (_rows("linear_fp8", "wo_b", 1),), 8.8e-6, 0.85),
    # Small matrices, in one launch for all that share an input.
    *(
        Target(f"projections of a layer's input, {kind}", (Part(kernel, "decode"),),
               least_fraction=0.60)
        for kind, kernel in (
            ("ratio 4", "project_indexed"), ("ratio 128", "project_blocks"),
            ("window only", "project_window"),
        )
    ),
    Target("wq_b and the indexer's, one launch", (Part("queries_fp8", "wq_b", {"M": 1}),),
           least_fraction=0.60),
    *(
        Target(
            f"experts of {words}, the shared one too: gate, up, SwiGLU, down, sum",
            _experts(rows),
            seconds * _with_the_shared_one(rows),
        )
        for words, rows, seconds in (("one row", 1, 25e-6), ("eight rows", 8, 163e-6))
    ),
    Target(
        "hyper-connection: post, next pre, norm",
        (Part("hyper_step_open", "decode"),),
        4e-6,
    ),
    Target(
        "sparse attention, 640 keys, 64 heads",
        (Part("attention_decode", "decode"),),
        8e-6,
        floor=lambda c: 640 * cached_row_bytes(c),
        formula="640 cached rows: 1 byte a channel, 2 a rotated one, a scale for 64",
    ),
    Target(
        "index scores and the best 512 of 32,768 keys",
        (Part("indexer_select", "decode 32768"),),
        10e-6,
        floor=lambda c: 32768 * index_key_bytes(c),
        formula=_KEYS_FORMULA,
    ),
    Target(
        "index scores and the best 512 of 262,144 keys",
        (Part("indexer_select", "longest"),),
        22e-6,
        floor=lambda c: 262144 * index_key_bytes(c),
        formula=_KEYS_FORMULA,
    ),
    Target(
        "greedy head, argmax inside",
        (Part("lm_head_argmax", "vocabulary"),),
        least_fraction=0.95,
    ),
    *(
        Target(
            f"eight rows of {name} over one",
            (_rows("linear_fp8", name, 8),),
            most=1.15,
            over=_rows("linear_fp8", name, 1),
        )
        for name in ("wq_b", "wo_b")
    ),
    Target("decode step, 43 layers, one row", most_s=1 / 220, step=True, floor=step_bytes,
           formula=_STEP_US),
    Target("decode step, 43 layers, one row", most_s=1 / 300, step=True, floor=step_bytes,
           formula=_STEP_US, stretch=True),
    Target("launches of that step", most=520, step=True, formula="none is counted",
           floor=lambda c: 0.0),
)  # fmt: skip


def reached(results: Sequence[Result], config: ModelConfig, roof: float) -> list[Reached]:
    """Every target beside what these results say. roof: bytes a second, of the same run."""
    return [_reached(target, results, config, roof) for target in TARGETS]


@functools.cache
def flash_config() -> ModelConfig:
    """The configuration that the targets are about."""
    from lab.minted import model_of

    plan = model_of(FLASH)
    config: ModelConfig = plan.config  # type: ignore[union-attr]
    return config


def _reached(
    target: Target, results: Sequence[Result], config: ModelConfig, roof: float
) -> Reached:
    floor = target.floor_bytes(config)
    value = _step_value(target, results) if target.step else _sum(target.parts, results)
    if target.over is not None and value is not None:
        one = _sum((target.over,), results)
        value = value / one if one else None
    timed = value is not None and target.most is None
    fraction = floor / value / roof if timed and value and floor else None
    return Reached(target, floor, value, fraction, _met(target, value, fraction))


def _met(target: Target, value: float | None, fraction: float | None) -> bool | None:
    if value is None:
        return None
    limits = [
        target.most_s is None or value <= target.most_s,
        target.most is None or value <= target.most,
        target.least_fraction is None or (fraction or 0.0) >= target.least_fraction,
    ]
    return all(limits)


def _sum(parts: Sequence[Part], results: Sequence[Result]) -> float | None:
    """Seconds of all parts one after the other; None when one was not timed."""
    total = 0.0
    for part in parts:
        found = [r for r in results if part.is_it(r) and r.get("time_s")]
        if not found:
            return None
        total += float(found[-1]["time_s"])
    return total if parts else None


def _step_value(target: Target, results: Sequence[Result]) -> float | None:
    steps = [
        r
        for r in results
        if r["kernel"] == "step"
        and "layers=43" in str(r.get("model"))
        and r.get("rows") == 1
        and r.get("time_s")
        and r.get("cards", 1) == 1
        and not r.get("arm")
    ]
    if not steps:
        return None
    return float(steps[-1]["launches"] if target.most is not None else steps[-1]["time_s"])
