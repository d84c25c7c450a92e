"""Arms: defaults by path, every refusal names its variable."""

from __future__ import annotations

import dataclasses

import pytest

from dsv4.engine import switches
from dsv4.engine.arms import ActQuantVariant, ExpertArm, path_name
from dsv4.engine.switches import resolve_arms, resolve_dense_arm
from dsv4.errors import Refusal
from tests.goldens import ROOT


def test_the_device_path_is_the_default_with_its_fastest_arms() -> None:
    arms = resolve_arms({})
    assert path_name(arms.decode_path) == "device" and not arms.decode_path.host_math
    assert arms.expert is ExpertArm.NATIVE
    assert arms.dense_fp8 and arms.dots_f32 and arms.chains_f32 and arms.dspark_head_f32
    assert not arms.dense_input_fp8 and arms.quantisers and arms.drafter == "off"
    assert arms.variant is ActQuantVariant.REF_FP8_ROUND
    assert arms.spec_depth is None and arms.split_at == ()
    assert arms.indirect_experts and arms.capturable


def test_legacy_sums_in_float64_on_bf16_matrices_with_the_host_choosing() -> None:
    arms = resolve_arms({"DSV4_DECODE_PATH": "legacy"})
    assert not arms.dense_fp8 and not arms.dots_f32 and not arms.chains_f32
    assert arms.decode_path.host_math and not arms.capturable


def test_f32_leaves_the_chains_in_float64() -> None:
    arms = resolve_arms({"DSV4_DOTS_ARM": "f32"})
    assert arms.dots_f32 and not arms.chains_f32
    arms = resolve_arms({"DSV4_DOTS_ARM": "f64"})
    assert not arms.dots_f32 and not arms.chains_f32


def test_hostmath_is_the_device_path_that_cannot_be_captured() -> None:
    arms = resolve_arms({"DSV4_DECODE_PATH": "device-hostmath"})
    assert arms.decode_path.on_device and arms.decode_path.host_math
    assert arms.dense_fp8 and not arms.capturable


def test_switching_quantisers_off_takes_bf16_matrices_and_no_codes() -> None:
    arms = resolve_arms({"DSV4_QUANTISERS": "off"})
    assert not arms.dense_fp8 and not arms.indirect_experts


def test_an_option_overrides_the_environment_and_none_does_not() -> None:
    environment = {"DSV4_DOTS_ARM": "f64", "DSV4_PREFILL_CHUNK": "16"}
    arms = resolve_arms(environment, dots_arm="f32", prefill_chunk=None, split_at=3)
    assert arms.dots_f32 and arms.prefill_chunk == 16 and arms.split_at == (3,)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert resolve_arms({"DSV4_DENSE_ARM": ""}) == resolve_arms({})


def test_arms_cannot_be_changed_after_they_were_read() -> None:
    arms = resolve_arms({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        arms.dots_f32 = False  # type: ignore[misc]


def test_a_record_holds_every_arm_as_plain_values() -> None:
    record = resolve_arms({"DSV4_SPLIT_AT": "2,3"}).to_json()
    assert set(record) == {f.name for f in dataclasses.fields(resolve_arms({}))}
    assert record["decode_path"] == "device" and record["split_at"] == [2, 3]
    assert record["expert"] == "native" and record["variant"] == "ref"


UNKNOWN = [
    ("DSV4_DECODE_PATH", "fast"),
    ("DSV4_EXPERT_ARM", "bf16"),
    ("DSV4_DENSE_ARM", "fp16"),
    ("DSV4_DENSE_INPUT", "int8"),
    ("DSV4_DOTS_ARM", "tf32"),
    ("DSV4_DSPARK_HEAD_ARM", "f32"),
    ("DSV4_DRAFTER", "eagle"),
    ("DSV4_VT", "on"),
    ("DSV4_PROFILE", "1"),
    ("DSV4_QUANTISERS", "none"),
    ("DSV4_VARIANT", "clamp"),
    ("DSV4_DEVICE_GEMM", "cutlass"),
    ("DSV4_PREFILL_GEMM", "cublas"),
    ("DSV4_GRAPHS", "always"),
    ("DSV4_SPEC_DEPTH", "three"),
    ("DSV4_SPEC_DEPTH", "0"),
    ("DSV4_SPEC_DEPTH", "9"),
    ("DSV4_SPLIT_AT", "half"),
    ("DSV4_SPLIT_AT", "-1"),
    ("DSV4_PREFILL_CHUNK", "4"),
]


@pytest.mark.parametrize(("variable", "value"), UNKNOWN)
def test_an_unknown_value_is_refused_with_its_variable(variable: str, value: str) -> None:
    with pytest.raises(Refusal, match=variable) as refusal:
        resolve_arms({variable: value})
    assert value in str(refusal.value)


EXCLUDED = [
    ({"DSV4_EXPERT_ARM": "bf16_dequant"}, "DSV4_EXPERT_ARM"),
    ({"DSV4_DECODE_PATH": "legacy", "DSV4_DOTS_ARM": "f32"}, "DSV4_DOTS_ARM"),
    ({"DSV4_DECODE_PATH": "legacy", "DSV4_DOTS_ARM": "f32x"}, "DSV4_DOTS_ARM"),
    ({"DSV4_DECODE_PATH": "legacy", "DSV4_DENSE_ARM": "fp8"}, "DSV4_DENSE_ARM"),
    ({"DSV4_QUANTISERS": "off", "DSV4_DENSE_ARM": "fp8"}, "DSV4_DENSE_ARM"),
    ({"DSV4_QUANTISERS": "off", "DSV4_EXPERT_ARM": "native"}, "DSV4_EXPERT_ARM"),
    ({"DSV4_QUANTISERS": "off", "DSV4_DENSE_INPUT": "fp8"}, "DSV4_DENSE_INPUT"),
    ({"DSV4_GRAPHS": "on", "DSV4_DECODE_PATH": "device-hostmath"}, "DSV4_GRAPHS"),
    ({"DSV4_GRAPHS": "on", "DSV4_QUANTISERS": "off"}, "DSV4_GRAPHS"),
    ({"DSV4_GRAPHS": "on", "DSV4_PROFILE": "sync"}, "DSV4_GRAPHS"),
    ({"DSV4_VT_TAU": "0.5"}, "DSV4_VT_TAU"),
    ({"DSV4_VT_FLOOR": "2"}, "DSV4_VT_FLOOR"),
    ({"DSV4_VT": "slot", "DSV4_VT_TAU": "1.5"}, "DSV4_VT_TAU"),
    ({"DSV4_VT": "slot", "DSV4_VT_FLOOR": "5"}, "DSV4_VT_FLOOR"),
]


@pytest.mark.parametrize(("environment", "variable"), EXCLUDED)
def test_arms_that_exclude_each_other_are_refused(
    environment: dict[str, str], variable: str
) -> None:
    with pytest.raises(Refusal, match=variable):
        resolve_arms(environment)


def test_a_switch_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refusal, match="turbo"):
        resolve_arms({}, turbo="on")


@pytest.mark.parametrize(
    ("value", "on_device", "fp8"),
    [(None, True, True), ("", False, False), ("bf16", True, False), ("fp8", True, True)],
)
def test_the_dense_arm_follows_the_path_unless_it_is_said(
    value: str | None, on_device: bool, fp8: bool
) -> None:
    assert resolve_dense_arm(value, on_device) is fp8


def test_every_switch_and_value_is_on_the_page() -> None:
    page = (ROOT / "docs" / "switches.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `DSV4_")}
    assert set(rows) == {*switches._WORDS, *switches._NUMBERS}
    for name, values in switches._WORDS.items():
        assert rows[name].split("|")[2].strip() == ", ".join(f"`{v}`" for v in values), name


def test_dependent_launches_are_off_where_branches_are_on() -> None:
    assert resolve_arms({}).dependent_launch == "auto"
    assert resolve_arms({"DSV4_BRANCHES": "on"}).dependent_launch == "off"
    with pytest.raises(Refusal, match="DSV4_DEPENDENT_LAUNCH=on"):
        resolve_arms({"DSV4_BRANCHES": "on", "DSV4_DEPENDENT_LAUNCH": "on"})


def test_a_step_is_fused_by_itself_on_a_gpu_alone() -> None:
    assert resolve_arms({}).fused == "auto" and resolve_arms({}).fusable
    assert not resolve_arms({"DSV4_FUSED": "off"}).fusable
