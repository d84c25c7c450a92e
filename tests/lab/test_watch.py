"""`watch`: a save starts a round, deltas say what moved, broken sources and Ctrl-C are survived."""

from __future__ import annotations

import os
from pathlib import Path

from dsv4.runtime.sources import cuda_root
from lab.debug.watch import watched
from tests.lab.planted import planted
from tests.lab.terminal import terminal

RIGHT, WRONG = "y[i] = f32_to_bf16(x[i]);", "y[i] = (bf16)(__float_as_uint(x[i]) >> 16);"
WATCH = ("watch", "cast", "-c", "tail,special", "--backend", "host")


def save(root: str, old: str, new: str) -> None:
    """Save an edited source as an editor does: a new file in the place of the old one."""
    source = Path(root) / "cast.cu"
    fresh = source.with_suffix(".new")
    fresh.write_text(source.read_text().replace(old, new))
    os.replace(fresh, source)


def test_the_files_watched_are_the_source_and_all_it_includes() -> None:
    found = {p.name for p in watched(["rms_norm"])}
    assert {"rms_norm.cu", "reduce.cuh", "math.cuh", "probe.cuh", "types.cuh"} <= found
    assert "attention.cu" not in found


def test_a_source_whose_include_is_gone_is_still_watched(tmp_path: Path) -> None:
    root = planted(tmp_path, "cast.cu", '#include "common/', '#include "nowhere/')
    with terminal(tmp_path, *WATCH, "--until-green", DSV4_CUDA_ROOT=root) as screen:
        assert "does not exist" in screen.wait_for("does not exist")
        save(root, '#include "nowhere/', '#include "common/')
        screen.wait_for("2 of 2 pass")
        assert screen.exit_code() == 0


def test_saving_a_repair_turns_it_green_and_shows_the_delta(tmp_path: Path) -> None:
    root = planted(tmp_path, "cast.cu", RIGHT, WRONG)
    with terminal(tmp_path, *WATCH, "--until-green", DSV4_CUDA_ROOT=root) as screen:
        first = screen.wait_for("0 of 2 pass")
        assert "watching" in first and "FAIL" in first
        save(root, WRONG, RIGHT)
        second = screen.wait_for("2 of 2 pass")
        assert "saved cast.cu" in second
        assert "FAIL -> PASS" in second and "123/257 -> 257/257" in second
        assert screen.exit_code() == 0


def test_a_source_that_does_not_compile_is_told_and_watched_on(tmp_path: Path) -> None:
    root = planted(tmp_path, "cast.cu", RIGHT, RIGHT)
    with terminal(tmp_path, *WATCH, DSV4_CUDA_ROOT=root) as screen:
        screen.wait_for("2 of 2 pass")
        save(root, RIGHT, "y[i] = nonsense(x[i]);")
        assert "cast.cu:" in screen.wait_for("nonsense")
        save(root, "y[i] = nonsense(x[i]);", RIGHT)
        screen.wait_for("2 of 2 pass, 2 as before")
        screen.type("\x03")
        assert "ended" in screen.wait_for("ended")
        assert screen.exit_code() == 130


def test_saving_a_header_starts_a_round_too(tmp_path: Path) -> None:
    root = planted(tmp_path, "cast.cu", RIGHT, RIGHT)
    header = next(p for p in watched(["cast"]) if p.suffix == ".cuh").relative_to(cuda_root())
    with terminal(tmp_path, *WATCH, DSV4_CUDA_ROOT=root) as screen:
        screen.wait_for("2 of 2 pass")
        own = Path(root) / header
        own.write_text(own.read_text() + "// saved\n")
        assert f"saved {header.name}" in screen.wait_for("2 of 2 pass, 2 as before")
        screen.type("\x03")
        assert screen.exit_code() == 130
