"""`shell`: the arrays and functions of a prompt, on a pipe and on a terminal."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dsv4 import registry
from dsv4.runtime.hostdevice import HostDevice
from lab.cases import cases
from lab.debug.shell import names_of, places
from lab.debug.stand import Stand
from tests.lab.planted import lab
from tests.lab.terminal import terminal


def stand_of(kernel: str) -> Stand:
    """The first case of a kernel on the host."""
    return Stand(registry.spec(kernel), cases(kernel)[2], HostDevice())


def test_the_names_are_inputs_results_and_functions() -> None:
    names = names_of(stand_of("rms_norm"))
    assert names["x"].shape == names["got"].shape == names["ref"].shape == (7, 513)
    assert names["w"].dtype == np.float64
    assert np.array_equal(names["diff"], names["got"] - names["ref64"])
    assert names["bits"].y.dtype == np.float32
    assert {"launch", "rebuild", "where", "shape", "spec", "case"} <= set(names)


def test_several_outputs_are_reached_by_name() -> None:
    names = names_of(stand_of("act_quant_fp8"))
    assert names["got"].codes.shape == names["ref"].codes.shape
    assert np.array_equal(names["got"].scales, names["ref"].scales)


def test_where_names_places_along_the_axes() -> None:
    stand = stand_of("rms_norm")
    mask = np.zeros((7, 513), bool)
    mask[3, 448] = True
    assert places(stand, mask) == [{"T": 3, "D": 448}]
    assert places(stand, np.ones(2, bool)) == [{"axis0": 0}, {"axis0": 1}]


def test_rebuild_defines_constants_and_launch_renews_the_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand = stand_of("act_quant_fp8")
    names = names_of(stand)
    before = names["got"]
    names["rebuild"](define={"LAB_PROBE": 1})
    assert names["got"] is not before
    assert np.array_equal(names["got"].codes, before.codes)
    stand.inputs["x"][...] = 0
    names["launch"]()
    assert not names["got"].codes.any()
    assert "contract bit_exact" in capsys.readouterr().out


def test_a_script_on_a_pipe_runs_line_by_line(tmp_path: Path) -> None:
    script = "print('shape is', got.shape)\nprint(where(x == x.max())[0].keys())\n"
    done = lab(tmp_path, "shell", "rms_norm", "-p", "T=7", "--backend", "host", stdin=script)
    assert done.returncode == 0, done.stderr
    assert "shape is (7, 513)" in done.stdout
    assert "dict_keys(['T', 'D'])" in done.stdout


def test_a_prompt_on_a_terminal_answers_and_ends_with_ctrl_d(tmp_path: Path) -> None:
    ipython = importlib.util.find_spec("IPython") is not None
    with terminal(tmp_path, "shell", "rms_norm", "-p", "T=7", "--backend", "host") as screen:
        shown = screen.wait_for("functions  launch()")
        assert "results    got, ref" in shown
        screen.wait_for("In [1]:" if ipython else ">>>")
        screen.type("print(6 * got.shape[0])\r")
        screen.wait_for("42")
        screen.wait_for("In [2]:" if ipython else ">>>")
        screen.type("\x04")
        assert screen.exit_code() == 0


def test_a_prompt_refuses_to_be_a_document(tmp_path: Path) -> None:
    done = lab(tmp_path, "--json", "shell", "rms_norm", "--backend", "host")
    assert done.returncode == 2
    assert "no document" in done.stderr
