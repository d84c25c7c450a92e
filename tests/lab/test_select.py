"""The case filter language."""

from __future__ import annotations

import pytest

from dsv4.errors import SpecError
from dsv4.spec import F32, I32, Exact, Geometry, In, Kernel, Option, Out, Work, kernel
from lab.cases import Case
from lab.cases.fills import extreme, ids
from lab.cases.select import is_adversarial, parse, require_known, select, split_names

CASES = (
    Case("one", T=1, D=4096),
    Case("tail", T=7, D=4096, eps=1e-6),
    Case("tail of D", T=128, D=100, group=64),
    Case("prefill", T=2048, D=4096, level="full"),
    Case("cancel", T=3, D=8, x=extreme()),
)


def names(*patterns: str, **more: object) -> list[str]:
    """Names of the selected cases."""
    return [c.name for c in select(CASES, patterns, **more)]  # type: ignore[arg-type]


def declared() -> Kernel:
    """A kernel with a number input, an id input and an option."""
    return kernel(
        name="picked",
        family="picked",
        summary="",
        args=[In("x", F32, "T D"), In("ids", I32, "T"), Out("y", F32, "T D")],
        geometry=lambda s: Geometry(1, 1),
        contract={"y": Exact("")},
        work=lambda s: Work(0, 0),
        options=(Option("group", (128, 64)),),
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("T=1,D=4096", ["one"]),
        ("T=1", ["one"]),
        ("T==1", ["one"]),
        ("T != 1", ["tail", "tail of D", "cancel"]),
        ("T>=7", ["tail", "tail of D"]),
        ("T<7,D>100", ["one"]),
        ("T > 1 , T < 7", ["cancel"]),
        ("D<=100", ["tail of D", "cancel"]),
        ("group=64", ["tail of D"]),
        ("eps<1e-5", ["tail"]),
        ("D=0x1000", ["one", "tail"]),
        ("H=1", []),
    ],
)
def test_all_conditions_of_a_pattern_must_hold(pattern: str, expected: list[str]) -> None:
    assert names(pattern) == expected


def test_several_patterns_are_alternatives() -> None:
    assert names("T=1", "T=3") == ["one", "cancel"]


@pytest.mark.parametrize("pattern", ["", "T", "T=", "=1", "T=x", "T=1,", "T=1;D=2", "T~1", "1=T"])
def test_what_is_no_condition_is_refused_with_an_example(pattern: str) -> None:
    with pytest.raises(SpecError, match=r"no condition\n.*T=1,D=4096"):
        parse(pattern)


def test_levels_include_the_lower_ones() -> None:
    assert "prefill" not in names()
    assert names(level="quick") == names()
    assert "prefill" in names(level="full") and "one" in names(level="full")


def test_a_case_named_exactly_runs_whatever_its_level_unless_a_level_is_given() -> None:
    assert names(names=["prefill"]) == ["prefill"]
    assert names(names=["prefill"], level="quick") == []
    assert names(names=["pre"]) == []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(SpecError, match="no level 'slow'; there are quick, full, stress"):
        names(level="slow")


def test_an_exact_name_wins_over_a_prefix_and_a_glob_over_nothing() -> None:
    assert names(names=["tail"]) == ["tail"]
    assert names(names=["tail*"]) == ["tail", "tail of D"]
    assert names(names=["ta"]) == ["tail", "tail of D"]
    assert names(names=["one,cancel"]) == ["one", "cancel"]
    assert names(names=["tail-T=7-D=4096"]) == ["tail"]


def test_names_are_split_at_commas_and_kept_once() -> None:
    assert split_names(["a, b", "b", ""]) == ("a", "b")


def test_a_name_with_commas_stays_whole_where_there_is_one() -> None:
    known = {"shard", "shard, verify", "verify"}
    assert split_names(["shard, verify"], known) == ("shard, verify",)
    assert split_names(["verify,shard, verify,x"], known) == ("verify", "shard, verify", "x")
    assert split_names(["shard,verify"], known) == ("shard", "verify")
    cases = [Case("shard", T=1), Case("shard, verify", T=6)]
    require_known([(declared().spec, cases)], names=["shard, verify"])
    assert [c.name for c in select(cases, names=["shard, verify"])] == ["shard, verify"]


def test_adversarial_stands_for_cases_that_choose_their_numbers() -> None:
    assert names(names=["adversarial"]) == ["cancel"]
    assert names(names=["adversarial,one"]) == ["one", "cancel"]


def test_chosen_ids_are_not_adversarial_and_chosen_numbers_are() -> None:
    spec = declared().spec
    assert not is_adversarial(Case("a", T=1, D=1, ids=ids("T")), spec)
    assert is_adversarial(Case("b", T=1, D=1, ids=ids("T"), x=0.0), spec)


def test_an_option_has_its_default_in_every_case() -> None:
    spec = declared().spec
    assert [c.name for c in select(CASES, ["group=128"], spec=spec)] == ["one", "tail", "cancel"]


def test_a_name_that_no_kernel_has_is_refused_with_near_matches() -> None:
    chosen = [(declared().spec, CASES)]
    with pytest.raises(SpecError, match="no case 'cancle' in picked; did you mean cancel"):
        require_known(chosen, names=["cancle"])
    with pytest.raises(SpecError, match="no axis, scalar or option 'Q'"):
        require_known(chosen, patterns=["Q=1"])
    require_known(chosen, patterns=["T=9", "group=64", "eps=0"], names=["tail", "adversarial"])
