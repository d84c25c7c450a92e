"""Keeps the results of one run in the store as they come."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.runtime.device import Device
from lab.record.digests import stamp
from lab.record.environment import capture
from lab.record.store import Store
from lab.result import CaseResult


class Recorder:
    """One run in the store, or nothing when records are off.

    The run is begun before the first case, so that a store that cannot be written is refused
    before any work is done. Errors: StoreError.
    """

    def __init__(self, path: Path, device: Device, *, enabled: bool = True) -> None:
        """Capture the environment and begin the run."""
        self.env = capture(device)
        self.run_id: int | None = None
        self._store: Store | None = None
        self._cuda = device if device.backend == "cuda" else None
        if enabled:
            self._store = Store.open(path)
            self.run_id = self._store.begin_run(sys.argv, self.env)

    def add(self, result: CaseResult, *, case_file: Path | None = None) -> None:
        """Store one result in one transaction."""
        if self._store is None or self.run_id is None:
            return
        document = {**result.to_json(), **stamp(result.kernel)}
        if case_file is not None:
            document["artifacts"] = [{"kind": "case", "path": str(case_file)}]
        if result.build is not None:
            document["build"] = result.build
        samples = None
        if result.timing is not None:
            samples = np.asarray(result.timing.samples_s, "<f4").tobytes()
        self._store.add_result(self.run_id, document, samples)

    def add_document(self, document: Mapping[str, Any], samples: bytes | None = None) -> None:
        """Store a result that is no case of a kernel, such as a twin's, or has more to say.

        samples: little-endian float32 seconds, where it was timed.
        """
        if self._store is not None and self.run_id is not None:
            self._store.add_result(self.run_id, document, samples)

    def abandon(self) -> None:
        """Close a store that cannot be written any more; the run stays marked as interrupted."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def finish(self, exit_code: int) -> None:
        """Mark the run as finished and close the store."""
        if self._store is not None and self.run_id is not None:
            self._store.end_run(self.run_id, exit_code)
            self._store.close()
            self._store = None
