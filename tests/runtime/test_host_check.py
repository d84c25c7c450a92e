"""Check mode names the kind and the line of every fault; shuffle mode makes races visible.

The expected line is the one marked `// FAULT` in the broken kernel.
"""

from pathlib import Path

import numpy as np
import pytest

from dsv4.errors import KernelFault
from dsv4.runtime.host import build

BROKEN = Path(__file__).parent / "broken"
CORRECT = Path(__file__).parent / "kernels" / "correct.cu"

KINDS = {
    "barrier_against_shuffle": "deadlock",
    "barrier_missing_after_write": "race",
    "barrier_missing_before_broadcast": "race",
    "barrier_missing_before_overwrite": "race",
    "copy_overwrites_early": "race",
    "copy_wait_missing": "uninitialised-shared",
    "divergent_barrier": "divergent-barrier",
    "early_exit_deadlock": "deadlock",
    "failed_assertion": "assertion",
    "misaligned_vector": "misaligned",
    "out_of_bounds_dynamic_shared": "out-of-bounds",
    "out_of_bounds_in_helper": "out-of-bounds",
    "out_of_bounds_read": "out-of-bounds",
    "out_of_bounds_static_shared": "out-of-bounds",
    "out_of_bounds_write": "out-of-bounds",
    "race_across_blocks": "race",
    "shuffle_after_exit": "deadlock",
    "syncwarp_missing": "race",
    "uninitialised_shared": "uninitialised-shared",
    "write_to_const": "write-to-const",
}
DEFERRED = {"copy_wait_missing"}
ONE_WARP = {"syncwarp_missing"}
RACY = [
    "barrier_missing_after_write",
    "barrier_missing_before_broadcast",
    "barrier_missing_before_overwrite",
    "copy_overwrites_early",
    "syncwarp_missing",
    "race_across_blocks",
]
# Symbol and the extra arguments after x and y.
SOUND = {
    "reverse": [],
    "shift_repeatedly": [],
    "swap_lanes": [],
    "interleave_bytes": [],
    "normalise": [],
    "two_stage_copy": [],
    "count_values": [np.zeros(8, np.uint32)],
    "skip_blocks": [],
}


def launch_broken(name: str, mode: str, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal(128).astype(np.float32)
    y = np.zeros(128, np.float32)
    cp_async = "deferred" if name in DEFERRED else "eager"
    build(BROKEN / f"{name}.cu", defines={}, mode=mode, cp_async=cp_async).launch(
        "broken",
        grid=(4, 1, 1),
        block=(32 if name in ONE_WARP else 128, 1, 1),
        shared_bytes=512,
        args=[x, y],
        seed=seed,
    )
    return y


def launch_sound(symbol: str, mode: str, cp_async: str, seed: int, blocks: int = 1) -> np.ndarray:
    x = np.random.default_rng(2).integers(1, 200, 128).astype(np.float32)
    y = np.zeros(128, np.float32)
    build(CORRECT, defines={}, mode=mode, cp_async=cp_async).launch(
        symbol,
        grid=(blocks, 1, 1),
        block=(128, 1, 1),
        shared_bytes=512,
        args=[x, y, *(extra.copy() for extra in SOUND[symbol])],
        seed=seed,
    )
    return y


def marked_line(path: Path) -> int:
    lines = path.read_text().splitlines()
    (marked,) = (number for number, line in enumerate(lines, 1) if "// FAULT" in line)
    return marked


def test_every_broken_kernel_has_an_expectation() -> None:
    assert sorted(KINDS) == sorted(path.stem for path in BROKEN.glob("*.cu"))


@pytest.mark.parametrize("name", KINDS)
def test_check_mode_names_the_kind_and_the_line(name: str) -> None:
    with pytest.raises(KernelFault) as caught:
        launch_broken(name, "check")
    fault = caught.value
    path = BROKEN / f"{name}.cu"
    assert (fault.kind, fault.file, fault.line) == (KINDS[name], str(path), marked_line(path))
    assert f"{path}:{marked_line(path)}" in str(fault)


def test_a_fault_says_which_block_and_thread() -> None:
    with pytest.raises(KernelFault) as caught:
        launch_broken("out_of_bounds_read", "check")
    assert (caught.value.block, caught.value.thread) == ((0, 0, 0), (127, 0, 0))
    with pytest.raises(KernelFault) as caught:
        launch_broken("race_across_blocks", "check")
    assert (caught.value.block, caught.value.thread) == ((1, 0, 0), (0, 0, 0))


def test_a_race_names_both_lines() -> None:
    with pytest.raises(KernelFault) as caught:
        launch_broken("barrier_missing_after_write", "check")
    path = BROKEN / "barrier_missing_after_write.cu"
    line = marked_line(path)
    assert f"at {path}:{line}" in str(caught.value)
    assert f"the other party is at {path}:{line - 1}" in str(caught.value)


def test_a_fault_in_a_helper_names_the_helper_too() -> None:
    with pytest.raises(KernelFault, match=r"inside copy\.cuh:\d+"):
        launch_broken("out_of_bounds_in_helper", "check")


@pytest.mark.parametrize("name", RACY)
def test_shuffle_mode_gives_a_race_different_bytes(name: str) -> None:
    results = {launch_broken(name, "shuffle", seed).tobytes() for seed in range(20)}
    assert len(results) > 1


def test_deferred_copies_show_a_missing_wait() -> None:
    assert np.isnan(launch_broken("copy_wait_missing", "shuffle")).all()


@pytest.mark.parametrize("cp_async", ["eager", "deferred"])
@pytest.mark.parametrize("symbol", SOUND)
def test_a_correct_kernel_has_no_fault_and_one_result(symbol: str, cp_async: str) -> None:
    blocks = 3 if symbol == "skip_blocks" else 1
    expected = launch_sound(symbol, "run", cp_async, 0, blocks).tobytes()
    for seed in range(20):
        assert launch_sound(symbol, "shuffle", cp_async, seed, blocks).tobytes() == expected
    for seed in range(3):
        assert launch_sound(symbol, "check", cp_async, seed, blocks).tobytes() == expected


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_the_last_block_may_read_what_others_left_behind_a_fence(mode: str) -> None:
    x = np.ones(128, np.float32)
    for seed in range(5):
        y, partial = np.zeros(128, np.float32), np.zeros(6, np.float32)
        count = np.zeros(1, np.uint32)
        build(CORRECT, defines={}, mode=mode).launch(
            "sum_by_last_block",
            grid=(6, 1, 1),
            block=(128, 1, 1),
            args=[x, y, partial, count],
            seed=seed,
        )
        assert (y == 128 * 21).all()


def test_check_mode_allows_exactly_the_bytes_of_a_view() -> None:
    whole = np.zeros(400, np.float32)
    x = np.arange(128, dtype=np.float32)
    module = build(CORRECT, defines={}, mode="check")
    places = {"grid": (1, 1, 1), "block": (128, 1, 1), "shared_bytes": 512}
    module.launch("reverse", args=[x, whole[100:228]], **places)
    assert (whole[100:228] == x[::-1]).all() and not whole[:100].any() and not whole[228:].any()
    with pytest.raises(KernelFault) as caught:
        module.launch("reverse", args=[x, whole[100:227]], **places)
    assert caught.value.kind == "out-of-bounds" and caught.value.thread == (127, 0, 0)
    # A view of every second element spans the bytes in between as well.
    module.launch("reverse", args=[x, whole[::2]], **places)


def test_one_array_may_be_input_and_output() -> None:
    module = build(CORRECT, defines={}, mode="check")
    x = np.arange(128, dtype=np.float32)
    module.launch("reverse", grid=(1, 1, 1), block=(128, 1, 1), shared_bytes=512, args=[x, x])
    assert (x == np.arange(128)[::-1]).all()


def test_the_process_and_the_module_stay_usable_after_a_fault() -> None:
    for _ in range(50):
        for name in ("early_exit_deadlock", "out_of_bounds_write", "divergent_barrier"):
            with pytest.raises(KernelFault):
                launch_broken(name, "check")
    assert launch_sound("normalise", "check", "eager", 0).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_a_wild_pointer_or_a_division_by_zero_does_not_end_the_process(
    mode: str, workers: int
) -> None:
    source = CORRECT.with_name("wild.cu")
    module = build(source, defines={}, mode=mode)
    x, y = np.zeros(8, np.float32), np.arange(-3, 29, dtype=np.int32)
    places = {"grid": (100, 1, 1), "block": (32, 1, 1), "workers": workers}
    for _ in range(3):
        with pytest.raises(KernelFault) as caught:
            module.launch("wild", args=[x, np.int64(1 << 44)], **places)
        assert caught.value.kind == "out-of-bounds" and caught.value.thread == (3, 0, 0)
        assert (caught.value.file, caught.value.line) == (str(source), 5)
        with pytest.raises(KernelFault) as caught:
            module.launch("div", args=[y.copy(), y], **places)
        assert caught.value.kind == "division-by-zero"


@pytest.mark.parametrize("mode", ["run", "shuffle"])
def test_a_deadlock_is_an_error_in_every_mode(mode: str) -> None:
    with pytest.raises(KernelFault) as caught:
        launch_broken("barrier_against_shuffle", mode)
    assert caught.value.kind == "deadlock"
    assert caught.value.file == str(BROKEN / "barrier_against_shuffle.cu")
    assert 'mode="check"' in str(caught.value)
