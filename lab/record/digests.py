"""What identifies a kernel in the record: its source with every header, and its declaration."""

from __future__ import annotations

import functools
import hashlib

from dsv4 import registry
from dsv4.runtime.sources import cuda_root, digest, include_closure
from dsv4.spec import KernelSpec
from lab.record.rows import dumps


def stamp(kernel: str) -> dict[str, str]:
    """`source_digest` and `spec_digest` of a kernel, to put into its results."""
    spec = registry.spec(kernel)
    return {"source_digest": source_digest(spec), "spec_digest": spec_digest(spec)}


@functools.cache
def _source_digest(family: str) -> str:
    return digest(include_closure(cuda_root() / f"{family}.cu"), "")


def source_digest(spec: KernelSpec) -> str:
    """A digest of the `.cu` and everything it includes."""
    return _source_digest(spec.family)


def spec_digest(spec: KernelSpec) -> str:
    """A digest of what a result means: arguments, options, contracts and the other promises.

    A change starts a new line of history; tuning the geometry does not.
    """
    facts = {
        "name": spec.name,
        "args": [(a.role, a.name, a.fmt.name, list(a.axes), a.strided, a.align) for a in spec.args],
        "options": [(o.name, list(o.choices)) for o in spec.options],
        "requires": [r.condition for r in spec.requires],
        "contract": {name: repr(c) for name, c in spec.contract.items()},
        "promises": [spec.repeatable, spec.batch_invariant, spec.portable],
    }
    return hashlib.sha256(dumps(facts).encode()).hexdigest()
