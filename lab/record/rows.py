"""Between result dictionaries and table rows: the SQL of the store in one place."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from typing import Any

_JSON_COLUMNS = ("argv", "state", "env", "axes", "census", "json")

RUNS = """
SELECT run.id, run.uid, run.started, run.finished, run.exit_code, run.argv, run."commit",
       run.dirty, env.digest AS env_digest,
       count(result.id) AS results,
       coalesce(sum(result.verdict = 'PASS'), 0) AS pass,
       coalesce(sum(result.verdict = 'FAIL'), 0) AS fail,
       coalesce(sum(result.verdict = 'ERROR'), 0) AS error,
       count(DISTINCT result.kernel) AS kernels
FROM run JOIN env ON env.id = run.env_id LEFT JOIN result ON result.run = run.id
GROUP BY run.id ORDER BY run.id
"""

RUN = """
SELECT run.*, env.json AS env, env.digest AS env_digest
FROM run JOIN env ON env.id = run.env_id WHERE run.id = ?
"""

RESULTS = """
SELECT result.*, run.started AS started FROM result JOIN run ON run.id = result.run
WHERE (:run IS NULL OR result.run = :run) AND (:kernel IS NULL OR result.kernel = :kernel)
ORDER BY result.id DESC LIMIT :limit
"""

# ERROR < FAIL < PASS in the alphabet, so the smallest verdict is the worst.
LATEST = """
SELECT kernel, run, min(verdict) AS verdict, count(*) AS cases, max(source_digest) AS source_digest
FROM result
WHERE (kernel, run) IN (SELECT kernel, max(run) FROM result GROUP BY kernel)
GROUP BY kernel ORDER BY kernel
"""

HISTORY = """
SELECT result.run, run.started, result.backend, result.arch, min(result.verdict) AS verdict,
       count(*) AS cases, max(result.bound_use) AS bound_use
FROM result JOIN run ON run.id = result.run
WHERE result.kernel = ?
GROUP BY result.run, result.backend, result.arch ORDER BY result.run DESC LIMIT ?
"""

PRUNABLE = """
SELECT id FROM run
WHERE (:before IS NULL OR started < :before)
  AND (:keep IS NULL OR id NOT IN (SELECT id FROM run ORDER BY id DESC LIMIT :keep))
"""

ORPHANS = (
    "DELETE FROM env WHERE id NOT IN (SELECT env_id FROM run)",
    "DELETE FROM build WHERE id NOT IN (SELECT build FROM result WHERE build IS NOT NULL)",
)


def dumps(value: Any) -> str:
    """The value as one line of JSON with sorted keys; equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def decoded(row: sqlite3.Row) -> dict[str, Any]:
    """A row as a dictionary, its JSON columns decoded."""
    return {
        name: json.loads(value) if name in _JSON_COLUMNS and value is not None else value
        for name, value in zip(row.keys(), row, strict=True)
    }


def insert_run(
    connection: sqlite3.Connection, uid: str, started: str, argv: list[str], env: Mapping[str, Any]
) -> int:
    """The id of the new run row.

    What changes from minute to minute (`state`) and from edit to edit (`git`) lies with the run;
    the rest of the environment is stored once.
    """
    lasting = {k: v for k, v in env.items() if k not in ("state", "git")}
    git = env.get("git") or {}
    text = dumps(lasting)
    digest = hashlib.sha256(text.encode()).hexdigest()
    connection.execute("INSERT OR IGNORE INTO env (digest, json) VALUES (?, ?)", (digest, text))
    cursor = connection.execute(
        'INSERT INTO run (uid, started, argv, "commit", dirty, diff_digest, state, env_id)'
        " SELECT ?, ?, ?, ?, ?, ?, ?, id FROM env WHERE digest = ?",
        (
            uid,
            started,
            dumps(argv),
            git.get("commit"),
            git.get("dirty"),
            git.get("diff_digest"),
            dumps(env.get("state")),
            digest,
        ),
    )
    return int(cursor.lastrowid or 0)


def insert_result(
    connection: sqlite3.Connection, run_id: int, result: Mapping[str, Any], samples: bytes | None
) -> int:
    """The id of the new result row; its histograms, timing, build and artifacts go with it."""
    outputs: list[Mapping[str, Any]] = list(result.get("outputs") or [])
    first = next((o["first"] for o in outputs if o.get("first")), None)
    columns = {
        "run": run_id,
        **{k: result.get(k) for k in ("kernel", "family", "case", "backend", "mode", "arch")},
        **{k: result.get(k) for k in ("seed", "verdict", "spec_digest", "source_digest")},
        **{k: result.get(k) for k in ("input_digest", "output_digest", "time_s", "bytes")},
        "axes": dumps(result.get("axes") or {}),
        "bandwidth_fraction": result.get("bandwidth_fraction"),
        "build": _insert_build(connection, result),
        "contract": "; ".join(dict.fromkeys(str(o["contract"]) for o in outputs)) or None,
        "identical": sum(int(o.get("identical") or 0) for o in outputs),
        "n": sum(int(o.get("n") or 0) for o in outputs),
        **{k: _largest(o.get(k) for o in outputs) for k in ("ulp_max", "ulp_real_max")},
        **{k: _largest(o.get(k) for o in outputs) for k in ("rel_l2", "bound_use")},
        "bias": _largest((o.get("bias") for o in outputs), key=abs),
        "cos": _largest((o.get("cos") for o in outputs), key=lambda c: -c),
        "first_index": first.get("index") if isinstance(first, Mapping) else None,
        "census": dumps({o["name"]: _census(o) for o in outputs}),
        "json": dumps(result),
    }
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    cursor = connection.execute(
        f"INSERT INTO result ({names}) VALUES ({marks})", tuple(columns.values())
    )
    result_id = int(cursor.lastrowid or 0)
    connection.executemany(
        "INSERT OR REPLACE INTO histogram VALUES (?, ?, ?, ?)",
        [
            (result_id, str(o["name"]), bucket, count)
            for o in outputs
            for bucket, count in _buckets(o.get("ulp_histogram"))
        ],
    )
    _insert_timing(connection, result_id, result, samples)
    connection.executemany(
        "INSERT INTO artifact VALUES (?, ?, ?)",
        [(result_id, str(a["kind"]), str(a["path"])) for a in result.get("artifacts") or []],
    )
    return result_id


def _insert_build(connection: sqlite3.Connection, result: Mapping[str, Any]) -> int | None:
    build = result.get("build")
    if not build:
        return None
    key = {
        "kernel": result["kernel"],
        "source_digest": build.get("source_digest") or result.get("source_digest") or "",
        "options": dumps(build.get("options") or {}),
        "arch": build.get("arch") or result.get("arch") or "",
        "nvrtc": build.get("nvrtc") or "",
        "cubin_digest": build.get("cubin_digest") or "",
    }
    where = " AND ".join(f"{name} = ?" for name in key)
    found = connection.execute(f"SELECT id FROM build WHERE {where}", tuple(key.values()))
    if row := found.fetchone():
        return int(row[0])
    used = {k: build.get(k) for k in ("regs", "smem", "local_bytes")}
    names, values = [*key, *used], [*key.values(), *used.values()]
    cursor = connection.execute(
        f"INSERT INTO build ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values
    )
    return int(cursor.lastrowid or 0)


def _insert_timing(
    connection: sqlite3.Connection,
    result_id: int,
    result: Mapping[str, Any],
    samples: bytes | None,
) -> None:
    timing = dict(result.get("timing") or {})
    if not timing and not samples and result.get("time_s") is None:
        return
    if samples:
        timing = {**_statistics(samples), **timing}
    timing.setdefault("n", result.get("time_samples"))
    timing.setdefault("median", result.get("time_s"))
    timing.setdefault("noise", result.get("time_noise"))
    if result.get("time_cold") is not None:
        timing.setdefault("mode", "cold" if result["time_cold"] else "warm")
    timing.setdefault("bytes", result.get("bytes"))
    timing.setdefault("flops", result.get("flops"))
    names = ("mode", "n", "min", "q1", "median", "q3", "mean", "noise", "sm_mhz", "throttled")
    values = [timing.get(name) for name in (*names, "bytes", "flops")]
    marks = ", ".join("?" * (len(values) + 2))
    connection.execute(f"INSERT INTO timing VALUES ({marks})", (result_id, *values, samples))


def _statistics(samples: bytes) -> dict[str, float]:
    """Order statistics of float32 seconds; quartiles by the nearest rank."""
    seconds = sorted(struct.unpack(f"<{len(samples) // 4}f", samples))
    last = len(seconds) - 1
    return {
        "n": len(seconds),
        "min": seconds[0],
        "q1": seconds[round(last * 0.25)],
        "median": (seconds[last // 2] + seconds[(last + 1) // 2]) / 2,
        "q3": seconds[round(last * 0.75)],
        "mean": math.fsum(seconds) / len(seconds),
    }


def _census(output: Mapping[str, Any]) -> Any:
    return output.get("census") or {
        k: output[k] for k in ("nan_got", "nan_ref", "unwritten") if k in output
    }


def _buckets(histogram: Any) -> list[tuple[str, int]]:
    """Bucket and count, from a mapping or a list of pairs or of counts in bucket order."""
    if isinstance(histogram, Mapping):
        return [(str(k), int(v)) for k, v in histogram.items()]
    pairs = [
        item if isinstance(item, list | tuple) else (index, item)
        for index, item in enumerate(histogram or [])
    ]
    return [(str(k), int(v)) for k, v in pairs]


def _largest(values: Iterable[Any], key: Any = None) -> float | None:
    # Results spell infinities as strings, because JSON has no word for them.
    numbers = [float(v) for v in values if v is not None]
    numbers = [v for v in numbers if not math.isnan(v)]
    return max(numbers, key=key) if numbers else None
