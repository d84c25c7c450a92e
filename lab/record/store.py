"""The record store: one SQLite file, one transaction per result.

A finished result survives whatever comes after it: an interrupted run, a full disk, a second
process. Everything that can go wrong with the file is a `StoreError` with the next step.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4.errors import StoreError
from lab.record import rows
from lab.record.failures import damaged, explained

SCHEMA_VERSION = 1
DEFAULT_PATH = Path(".lab") / "lab.db"
WAIT_S = 120.0
"""How long a writer waits for others; SQLite's queue is unfair, and 200 writers need a minute."""
_SCHEMA = Path(__file__).with_name("schema.sql")
# Beyond this a full structural check takes longer than the run that asks for it.
_CHECKED_BYTES = 256 * 2**20
_HEADER_BYTES = 100


def default_path() -> Path:
    """Where records go when no --store is given: `DSV4_STORE`, or `.lab/lab.db` here."""
    return Path(os.environ.get("DSV4_STORE") or DEFAULT_PATH)


class Store:
    """An open record store.

    Rows come back as dictionaries with JSON columns decoded. Errors: StoreError from every method.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, writable: bool) -> None:
        """Use `Store.open` or `Store.open_existing` instead."""
        self.path = path
        self.writable = writable
        self._connection = connection

    @classmethod
    def open(cls, path: Path | str | None = None, *, timeout_s: float = WAIT_S) -> Store:
        """The store at that path for writing, made with its directory when missing."""
        path = Path(path) if path is not None else default_path()
        with explained(path, "keep records"):
            path.parent.mkdir(parents=True, exist_ok=True)
            _require_whole(path)
            connection = _connect(path, timeout_s)
            try:
                _prepare(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, writable=True)

    @classmethod
    def open_existing(
        cls, path: Path | str | None = None, *, timeout_s: float = WAIT_S
    ) -> Store | None:
        """The store at that path for reading only; None when there is none."""
        path = Path(path) if path is not None else default_path()
        with explained(path, "read records"):
            if not path.exists() or path.stat().st_size == 0:
                return None
            _require_whole(path)
            connection = _connect_readonly(path, timeout_s)
            try:
                _require_version(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, writable=False)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        """The store itself; the `with` closes it."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All statements inside the `with`, or none of them."""
        if not self.writable:
            raise StoreError(f"cannot {doing} in {self.path}: it was opened for reading only")
        with explained(self.path, doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # Ctrl-C included. A statement that failed may have ended the transaction already.
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise

    def begin_run(
        self, argv: Sequence[str], env: Mapping[str, Any], *, uid: str | None = None
    ) -> int:
        """The id of a new run in this environment (`lab.record.environment.capture`)."""
        with self.transaction("start a run") as connection:
            return rows.insert_run(connection, uid or uuid.uuid4().hex, now(), list(argv), env)

    def add_result(
        self, run_id: int, result_json: Mapping[str, Any], samples: bytes | None = None
    ) -> int:
        """The id of the stored result, durable on return.

        result_json: one element of kernel-diff's `results` list; keys this version does not know
        are kept. samples: little-endian float32 seconds of each timed launch.
        """
        with self.transaction("keep a result") as connection:
            return rows.insert_result(connection, run_id, result_json, samples)

    def end_run(self, run_id: int, exit_code: int) -> None:
        """Mark the run as finished; a run without this mark was interrupted."""
        with self.transaction("finish a run") as connection:
            connection.execute(
                "UPDATE run SET finished = ?, exit_code = ? WHERE id = ?",
                (now(), exit_code, run_id),
            )

    def runs(self) -> list[dict[str, Any]]:
        """Every run, oldest first, with its counts of results by verdict."""
        return self._query(rows.RUNS)

    def run(self, run_id: int) -> dict[str, Any]:
        """One run with its whole environment under `env`. Errors: StoreError when unknown."""
        found = self._query(rows.RUN, (run_id,))
        if not found:
            known = [r["id"] for r in self.runs()]
            held = f"it holds {known[0]} to {known[-1]}" if known else "it holds none"
            raise StoreError(
                f"no record {run_id} in {self.path}; {held}\n  see: dsv4-lab records list"
            )
        return found[0]

    def results(
        self, run_id: int | None = None, *, kernel: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Results of a run, of a kernel, or all; oldest first. `json` is the stored element.

        limit: only the newest so many.
        """
        found = self._query(rows.RESULTS, {"run": run_id, "kernel": kernel, "limit": limit or -1})
        return found[::-1]

    def latest_verdicts(self) -> dict[str, str]:
        """Per kernel, the worst verdict in the latest run that had it."""
        return {kernel: latest["verdict"] for kernel, latest in self.latest().items()}

    def latest(self) -> dict[str, dict[str, Any]]:
        """Per kernel, its latest run: `run`, `verdict` (the worst), `source_digest`, `cases`."""
        return {row.pop("kernel"): row for row in self._query(rows.LATEST)}

    def history(self, kernel: str, limit: int) -> list[dict[str, Any]]:
        """The newest runs that had the kernel, oldest first, each with its worst verdict."""
        return self._query(rows.HISTORY, (kernel, limit))[::-1]

    def samples(self, result_id: int) -> bytes | None:
        """The timing samples of a result; None without."""
        with explained(self.path, "read records"):
            row = self._connection.execute(
                "SELECT samples FROM timing WHERE result = ?", (result_id,)
            ).fetchone()
        return row[0] if row else None

    def prune(self, keep: int | None = None, before: str | None = None) -> int:
        """How many runs were deleted: all but the newest `keep`, and those started before a date.

        With both, a run goes only when both say so. before: ISO date or time, UTC.
        """
        if keep is None and before is None:
            return 0
        with self.transaction("prune records") as connection:
            doomed = connection.execute(rows.PRUNABLE, {"keep": keep, "before": before}).fetchall()
            connection.executemany("DELETE FROM run WHERE id = ?", doomed)
            for statement in rows.ORPHANS:
                connection.execute(statement)
        with contextlib.suppress(sqlite3.Error):  # only gives space back; the rows are gone
            self._connection.execute("VACUUM")
        return len(doomed)

    def _query(self, sql: str, parameters: Any = ()) -> list[dict[str, Any]]:
        with explained(self.path, "read records"):
            return [rows.decoded(r) for r in self._connection.execute(sql, parameters)]


def now() -> str:
    """The time in UTC, ISO format, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


def _connect_readonly(path: Path, timeout_s: float) -> sqlite3.Connection:
    """Without write access WAL needs files that may not be makeable; then read it as it lies."""
    quoted = path.resolve().as_uri()
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{quoted}?{mode}", uri=True, timeout=timeout_s, isolation_level=None
        )
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            unmakeable = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
            if "immutable" in mode or not unmakeable:
                raise
    raise AssertionError("unreachable: the second mode returns or raises")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set the connection up, make the tables when there are none, refuse what is not ours."""
    connection.execute("PRAGMA foreign_keys = ON")
    # Some file systems (network, some containers) have no shared memory for WAL.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if path.stat().st_size <= _CHECKED_BYTES:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(path, verdict, "keep records")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.read_text().split(";\n"):
                connection.execute(statement)
        _require_version(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _require_version(connection: sqlite3.Connection, path: Path) -> None:
    try:
        row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        raise damaged(path, f"it has other tables: {error}") from None
    version = row[0]
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"cannot use the records in {path}: they have schema version {version},"
            f" this dsv4-lab knows {SCHEMA_VERSION}\n"
            "  upgrade dsv4-lab, or choose another place with --store PATH"
        )


def _require_whole(path: Path) -> None:
    """Refuse a file that is shorter than its own header says, before SQLite opens it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    if path.is_dir():
        raise StoreError(
            f"cannot keep records in {path}: it is a directory\n  name a file with --store PATH"
        )
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header.startswith(b"SQLite format 3\0") or len(header) < _HEADER_BYTES:
        raise damaged(path, "it does not start like an SQLite file")
    # A WAL that was not copied back yet may hold the missing pages.
    if Path(f"{path}-wal").exists():
        return
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    size = path.stat().st_size
    if size < page_size * pages:
        raise damaged(path, f"{size} bytes long, its header says {page_size * pages}")
