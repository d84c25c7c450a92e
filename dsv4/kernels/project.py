"""All products of a layer's normed input in one launch, compressors straight into their rings.

Beside them the coefficients that the launch before it left open.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dsv4.axes import Shape, evaluate
from dsv4.card import MULTIPROCESSORS
from dsv4.kernels import island_dots, linear_bf16
from dsv4.spec import (
    BF16,
    E4M3,
    F32,
    I32,
    Arg,
    Dim,
    Geometry,
    In,
    InOut,
    Kernel,
    Option,
    Out,
    Require,
    Scalar,
    Within,
    Work,
    kernel,
)

_THREADS = 512
_SHARED_BYTES = 208 * 1024
# For one or two rows every architecture has as much.
_SHARED_BYTES_FOR_FEW = 99 * 1024

_MIXES = "(2+M)*M"
_KINDS = ("window", "blocks", "indexed")
_MAIN = {"blocks": "K", "indexed": "2*K"}
_INDEX = {"indexed": "L"}

_DENSE = Within(
    "dot",
    depth=linear_bf16.depth("D"),
    terms="D",
    because="x rounded to bf16 is prescribed; " + linear_bf16.BECAUSE,
)
_DERIVED = "the oracle carries every rounding to the end by the exact derivative"
_COMB = Within("dot", because=_DERIVED)


def _island(rows: str) -> Within:
    return Within(
        "dot",
        depth=island_dots.depth(rows, "D"),
        terms="D",
        because="exact products fused into f32 sums: a lane's share of a part, butterfly, parts",
    )


def _heights(kind: str, s: Shape) -> dict[str, int]:
    """Rows of what each kind of segment reads: both matrices of a pair."""
    heights = {"DENSE": s.Q + s.K, "HEAD": s.H if kind == "indexed" else 0}
    for name, of_kind in (("MAIN", _MAIN), ("INDEX", _INDEX)):
        heights[name] = 2 * int(evaluate(of_kind[kind], s)) if kind in of_kind else 0
    return heights


def _blocks(kind: str, s: Shape) -> int:
    """With products: a multiprocessor is left to the one that balances, and each has eight rows."""
    return min(MULTIPROCESSORS - 1, -(-sum(_heights(kind, s).values()) // 8))


def _constants(kind: str) -> Callable[[Shape], Mapping[str, int]]:
    def constants(s: Shape) -> Mapping[str, int]:
        heights, blocks = _heights(kind, s), _blocks(kind, s)
        found = dict(
            STREAMS=s.M,
            ITERATIONS=s.iterations,
            KIND=_KINDS.index(kind),
            ROWS=s.T,
            WIDTH=s.D,
            BLOCKS=blocks,
            WARP_ROWS=4,
            DENSE_PARTS=int(evaluate(linear_bf16.parts("D"), s)),
        )
        found |= {f"{name}_HEIGHT": rows for name, rows in heights.items()}
        for name, of_kind in (("MAIN", _MAIN), ("INDEX", _INDEX)):
            height = of_kind.get(kind, "129")
            found[f"{name}_STEPS"] = int(evaluate(island_dots.part_steps(height, "D"), s))
            found[f"{name}_PARTS"] = int(evaluate(island_dots.parts(height, "D"), s))
        most = _SHARED_BYTES_FOR_FEW if s.T <= 2 else _SHARED_BYTES
        found["STAGED"] = int(_shared_bytes({**found, "STAGED": 1}) <= most)
        found["RING"] = 4 if s.T <= 4 else 2  # more sums leave fewer registers for loads
        return found

    return constants


def _shared_bytes(c: Mapping[str, int]) -> int:
    """Rows of x, rounded and as they are, parts of every sum, and places of rows in their rings."""
    width = 256 * -(-c["WIDTH"] // 256)
    inputs = 2 * (width + 8) + (4 * (width + 4) if c["STAGED"] else 0)
    parts = sum(
        -(-c[f"{rows}_HEIGHT"] // c["BLOCKS"]) * c[f"{parts}_PARTS"]
        for rows, parts in (
            ("DENSE", "DENSE"),
            ("HEAD", "DENSE"),
            ("MAIN", "MAIN"),
            ("INDEX", "INDEX"),
        )
    )
    return c["ROWS"] * (inputs + 4 * parts + 4)


def _project(kind: str, summary: str, inputs: list[Arg], outputs: list[Arg]) -> Kernel:
    constants = _constants(kind)
    rings = [a for a in outputs if a.role == "inout"]

    def geometry(s: Shape) -> Geometry:
        return Geometry(_blocks(kind, s) + 1, _THREADS, _shared_bytes(constants(s)))

    def work(s: Shape) -> Work:
        heights = _heights(kind, s)
        rows = heights["DENSE"] + 2 * (heights["HEAD"] + heights["MAIN"] + heights["INDEX"])
        scales = 4 * (-(-s.Q // 128) + -(-s.K // 128)) * -(-s.D // 128)
        return Work(
            read=rows * s.D + scales + 4 * s.T * s.D + (4 * s.T if rings else 0),
            write=4 * s.T * sum(heights.values()),
            flops=2 * s.T * sum(heights.values()) * s.D,
        )

    contract: dict[str, Any] = {name: _DENSE for name in ("latent", "kv")}
    contract |= dict(post=Within("dot", terms="4", because=_DERIVED), comb=_COMB)
    if kind == "indexed":
        contract["heads"] = _DENSE
    for arg in rings:
        contract[arg.name] = _island(_INDEX[kind] if arg.name.startswith("index") else _MAIN[kind])
    return kernel(
        name=f"project_{kind}",
        family="project",
        starts_early=True,
        reads_early=(
            "q_codes",
            "q_scales",
            "kv_codes",
            "kv_scales",
            *(a.name for a in inputs if a.fmt is BF16),
        ),
        summary=summary,
        args=[
            In("x", F32, "T D", align=16),
            In("q_codes", E4M3, "Q D", align=16),
            In("q_scales", F32, "ceil(Q/128) ceil(D/128)"),
            In("kv_codes", E4M3, "K D", align=16),
            In("kv_scales", F32, "ceil(K/128) ceil(D/128)"),
            In("mix", F32, f"T {_MIXES}"),
            In("hyper_scale", F32, "3"),
            In("hyper_base", F32, _MIXES),
            *inputs,
            Out("latent", F32, "T Q"),
            Out("kv", F32, "T K"),
            Out("post", F32, "T M"),
            Out("comb", F32, "T M M"),
            *outputs,
            Dim("Q"),
            Dim("K"),
            *([Dim("L"), Dim("H")] if kind == "indexed" else []),
            *([Dim("S")] if rings else []),
            Scalar("eps", F32),
        ],
        options=(Option("iterations", (20, 1, 2, 5)),),
        requires=(
            Require("T <= 8", because="a verify round holds at most 8 rows; they share one pass"),
            Require("D % 16 == 0", because="a lane takes 16 consecutive elements of a row"),
            Require("D <= 8192", because="one thread folds the at most 32 parts of a sum"),
            Require("M <= 8", because="a row's streams are unrolled"),
            Require("eps > 0", because="a column of zeros would divide by zero"),
        ),
        constants=constants,
        geometry=geometry,
        contract=contract,
        work=work,
        batch_invariant="" if rings else "T",
        portable=False,
    )


def _weights(prefix: str, rows: str) -> list[Arg]:
    return [In(f"{prefix}{name}", BF16, f"{rows} D", align=16) for name in ("wkv", "wgate")]


_RAW_ROWS = In("raw_rows", I32, "T")


def _rings(prefix: str, names: tuple[str, str], columns: str) -> list[Arg]:
    return [InOut(f"{prefix}{name}", F32, f"S {columns}") for name in names]


project_window = _project(
    "window", "latent and keys of a layer's input, FP8 weights, for 1 to 8 rows", [], []
)
project_blocks = _project(
    "blocks",
    "latent, keys, and the compressor's raw rows into their rings",
    [*_weights("", "K"), _RAW_ROWS],
    _rings("", ("raw_kv", "raw_score"), "K"),
)
project_indexed = _project(
    "indexed",
    "latent, keys, raw rows of both compressors into their rings, the indexer's head weights",
    [
        *_weights("", "2*K"),
        *_weights("index_", "L"),
        In("proj", BF16, "H D", align=16),
        _RAW_ROWS,
    ],
    [
        Out("heads", F32, "T H"),
        *_rings("", ("raw_kv", "raw_score"), "2*K"),
        *_rings("index_", ("kv", "score"), "L"),
    ],
)
