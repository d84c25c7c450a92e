"""What tests of refusals share."""

import contextlib
from collections.abc import Iterator

import pytest

from dsv4.speculation.refusals import DrafterRefusal


@contextlib.contextmanager
def refuses(code: str) -> Iterator[None]:
    """A `with` that must be refused by the rule of that code."""
    with pytest.raises(DrafterRefusal) as caught:
        yield
    assert caught.value.code == code, str(caught.value)
    assert len(str(caught.value).splitlines()) >= 3
