"""`minimise`: the smallest shape that fails, then the plainest values, in a file that replays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.sources import forget_sources
from lab.cases import Case, cases, inputs_of
from lab.debug.minimise import Minimised, minimise
from tests.lab.planted import lab, planted


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose planted sources this process uses."""
    monkeypatch.setenv("DSV4_CUDA_ROOT", str(tmp_path / "cuda"))
    yield tmp_path
    monkeypatch.undo()
    forget_sources()


def found_in(kernel: str, name: str, **more: object) -> Minimised:
    """The smallest failing case that a search from a named case ends at."""
    forget_sources()
    case = next(c for c in cases(kernel) if c.name == name)
    return minimise(registry.spec(kernel), case, HostDevice(), **more)  # type: ignore[arg-type]


def test_a_wrong_last_tile_ends_at_the_first_shape_that_has_one(sources: Path) -> None:
    # Wrong only from the second warp of a row on: D = 33 is the smallest row that shows it.
    planted(sources, "rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
            "y[i] = w[i] * (x[i] * factor) * (i < 32 ? 1.0f : 2.0f);")  # fmt: skip
    found = found_in("rms_norm", "off the block")
    assert dict(found.case.axes) == {"T": 1, "D": 33}
    assert found.finished
    assert found.result.verdict == "FAIL"


def test_values_become_zero_where_they_do_not_matter(sources: Path) -> None:
    # A negative element loses its sign; one such element is all that is needed.
    planted(sources, "cast.cu", "y[i] = f32_to_bf16(x[i]);", "y[i] = f32_to_bf16(fabsf(x[i]));")
    found = found_in("cast_bf16", "tail")
    assert dict(found.case.axes) == {"N": 1}
    assert found.nonzero["x"] == (1, 1)
    bits = inputs_of(registry.spec("cast_bf16"), found.case, 0)["x"]
    assert bits[0] < 0


def test_two_axes_and_a_scalar_shrink_together(sources: Path) -> None:
    right = "const float scale = exp2_of(k), inverse = exp2_of(-k), limit"
    planted(sources, "act_quant.cu", right, right.replace("(k)", "(k + (group == 2))"))
    found = found_in("act_quant_fp8_inplace", "kv rows")
    # The third group of 64 lanes: a prefix of 192, and rows no longer than that.
    assert dict(found.case.axes) == {"T": 1, "S": 192}
    assert found.case.values["prefix"] == 192
    count, size = found.nonzero["x"]
    assert (count, size) == (1, 192)


def test_an_axis_to_keep_stays(sources: Path) -> None:
    planted(sources, "rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
            "y[i] = w[i] * (x[i] * factor) + 1.0f;")  # fmt: skip
    found = found_in("rms_norm", "off the block", keep=["T"])
    assert dict(found.case.axes) == {"T": 7, "D": 1}


def test_the_budget_ends_the_search_with_the_best_so_far(sources: Path) -> None:
    planted(sources, "rms_norm.cu", "y[i] = w[i] * (x[i] * factor);", "y[i] = w[i];")
    found = found_in("rms_norm", "off the block", budget_s=1e-9)
    assert not found.finished
    assert dict(found.case.axes) == {"T": 7, "D": 513}


def test_a_passing_case_and_an_unknown_axis_are_refused() -> None:
    spec, case = registry.spec("cast_bf16"), Case("few", N=3)
    with pytest.raises(SpecError, match="it passes"):
        minimise(spec, case, HostDevice())
    with pytest.raises(SpecError, match="cast_bf16 has N"):
        minimise(spec, case, HostDevice(), keep=["Q"])


def test_the_command_writes_a_case_that_replays(tmp_path: Path) -> None:
    wrong = planted(tmp_path, "cast.cu", "y[i] = f32_to_bf16(x[i]);",
                    "y[i] = i == 100 ? 0 : f32_to_bf16(x[i]);")  # fmt: skip
    done = lab(tmp_path, "--json", "minimise", "cast", "-c", "tail", "--backend", "host",
               DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["axes"] == {"N": 101}
    assert document["finished"]
    again = lab(tmp_path, "replay", document["file"], DSV4_CUDA_ROOT=wrong)
    assert (again.returncode, "now FAIL" in again.stdout) == (1, True)
    assert lab(tmp_path, "replay", document["file"]).returncode == 0
    further = lab(tmp_path, "minimise", "cast", "--file", document["file"], "--backend", "host",
                  DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert further.returncode == 1


def test_a_fault_of_check_mode_is_minimised_as_that_fault(tmp_path: Path) -> None:
    wrong = planted(tmp_path, "cast.cu", "if (i < N) y[i]", "if (i <= N) y[i]")
    done = lab(tmp_path, "--json", "minimise", "cast", "-c", "tail", "--backend", "host",
               "--mode", "check", DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert done.returncode == 7, done.stderr
    document = json.loads(done.stdout)
    assert document["axes"] == {"N": 1}
    assert "out-of-bounds" in document["result"]["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "soon"], ["60s"]),
        (["--budget", "0s"], ["60s"]),
        (["--keep", "Q"], ["Q", "N"]),
        (["--file", "none.case"], ["none.case"]),
        ([], ["it passes"]),
    ],
)
def test_bad_input_is_refused_in_words(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = lab(tmp_path, "minimise", "cast", "-c", "tail", "--backend", "host", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
