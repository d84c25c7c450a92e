"""Records as JSON lines: one record a line, sorted keys, a `schema` field.

    {"record": "run", "schema": 1, "uid": ..., "started": ..., "argv": [...], "env": {...}}
    {"record": "result", "schema": 1, "run": <uid>, "result": {...}, "samples": <base64>}

A run comes before its results. Reading the same file twice adds nothing the second time.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsv4.errors import StoreError
from lab.record import rows
from lab.record.store import SCHEMA_VERSION, Store


def export_jsonl(store: Store, run_ids: Iterable[int] | None = None) -> Iterator[str]:
    """Lines for these runs and their results, or for all."""
    chosen = list(run_ids) if run_ids is not None else [r["id"] for r in store.runs()]
    for run_id in chosen:
        run = store.run(run_id)
        git = {k: run[k] for k in ("commit", "dirty", "diff_digest")}
        yield rows.dumps(
            {
                "schema": SCHEMA_VERSION,
                "record": "run",
                **{k: run[k] for k in ("uid", "started", "finished", "exit_code", "argv")},
                "env": {**run["env"], "git": git, "state": run["state"]},
            }
        )
        for result in store.results(run_id):
            samples = store.samples(result["id"])
            line = {
                "schema": SCHEMA_VERSION,
                "record": "result",
                "run": run["uid"],
                "result": result["json"],
            }
            if samples:
                line["samples"] = base64.b64encode(samples).decode()
            yield rows.dumps(line)


def import_jsonl(store: Store, lines: Iterable[str]) -> tuple[int, int]:
    """How many runs and results were added: all lines in one transaction, known runs skipped.

    Errors: StoreError naming the line that is not a record; then nothing was added.
    """
    added: dict[str, int | None] = {}
    results = 0
    with store.transaction("import records") as connection:
        known = {r[0] for r in connection.execute("SELECT uid FROM run")}
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            record = _parse(text, number)
            if record["record"] == "run":
                uid = str(record["uid"])
                if uid in known:
                    added[uid] = None
                    continue
                run_id = rows.insert_run(
                    connection, uid, record["started"], record["argv"], record["env"]
                )
                connection.execute(
                    "UPDATE run SET finished = ?, exit_code = ? WHERE id = ?",
                    (record.get("finished"), record.get("exit_code"), run_id),
                )
                added[uid] = run_id
                known.add(uid)
                continue
            if record["run"] not in added:
                raise _refuse(number, f"its run {record['run']} did not come before it")
            owner = added[record["run"]]
            if owner is not None:
                rows.insert_result(connection, owner, record["result"], _samples(record, number))
                results += 1
    return sum(run_id is not None for run_id in added.values()), results


def _parse(text: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise _refuse(number, f"it is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise _refuse(number, "it is not a JSON object")
    if record.get("schema") != SCHEMA_VERSION:
        raise _refuse(
            number, f"it has schema {record.get('schema')!r}, this dsv4-lab knows {SCHEMA_VERSION}"
        )
    needed = {"run": ("uid", "started", "argv", "env"), "result": ("run", "result")}
    kind = record.get("record")
    if kind not in needed:
        raise _refuse(number, f"it is a {kind!r}, not a run or a result")
    if missing := [k for k in needed[kind] if k not in record]:
        raise _refuse(number, f"it lacks {', '.join(missing)}")
    if kind == "result" and not {"kernel", "case", "verdict"} <= set(record["result"]):
        raise _refuse(number, "its result lacks kernel, case or verdict")
    return record


def _samples(record: Mapping[str, Any], number: int) -> bytes | None:
    if not record.get("samples"):
        return None
    try:
        return base64.b64decode(record["samples"], validate=True)
    except (binascii.Error, TypeError) as error:
        raise _refuse(number, f"its samples are not base64 ({error})") from None


def _refuse(number: int, found: str) -> StoreError:
    return StoreError(
        f"cannot import line {number}: {found}; nothing was imported\n"
        "  the file must be what dsv4-lab records export wrote"
    )
