"""Which rows propose about which position (T4, T12-T17, T19, refusals 8 and 9)."""

import pytest

from dsv4.drafters.config import is_dspark_strategy
from dsv4.speculation.accept import accept_prefix
from dsv4.speculation.harvest import Harvest
from tests.speculation.refusing import refuses

DFLASH, DSPARK = Harvest.DFLASH, Harvest.DSPARK


@pytest.mark.parametrize("strategy", [False, True])
@pytest.mark.parametrize("value", ["", "dflash"])
def test_a_dflash2_drafter_fills_masks_whatever_the_census_says(value: str, strategy: bool) -> None:
    assert Harvest.for_family_value(True, value, strategy) is DFLASH


def test_the_harvest_of_a_dflash2_drafter_cannot_be_switched() -> None:
    with refuses("harvest-dflash2"):
        Harvest.for_family_value(True, "dspark", False)
    with refuses("harvest-unknown"):
        Harvest.for_family_value(True, "shifted", False)


def test_other_families_follow_the_switch_and_then_the_census() -> None:
    assert Harvest.for_family_value(False, "dspark", False) is DSPARK
    assert Harvest.for_family_value(False, "", False) is DFLASH
    assert Harvest.for_family_value(False, "", True) is DSPARK


def test_a_shifted_block_proposes_with_every_row() -> None:
    assert (DSPARK.first_row, DSPARK.n_drafts(7)) == (0, 7)
    assert [DSPARK.trained_offset_of_row(r) for r in range(7)] == list(range(1, 8))


def test_a_mask_filling_block_does_not_propose_with_its_anchor() -> None:
    assert (DFLASH.first_row, DFLASH.n_drafts(7)) == (1, 6)
    assert [DFLASH.trained_offset_of_row(r) for r in range(1, 7)] == list(range(1, 7))


@pytest.mark.parametrize("harvest", Harvest)
def test_draft_i_rides_the_row_trained_for_offset_i(harvest: Harvest) -> None:
    for i in range(1, harvest.n_drafts(7) + 1):
        assert harvest.trained_offset_of_row(harvest.first_row + i - 1) == i


def test_the_switch_alone() -> None:
    assert Harvest.from_env_value("") is Harvest.from_env_value("dflash") is DFLASH
    assert Harvest.from_env_value("dspark") is DSPARK
    with refuses("harvest-unknown"):
        Harvest.from_env_value("shifted")
    assert [Harvest.from_name(n) for n in ("dflash", "dspark", "mask-fill")] == [
        DFLASH,
        DSPARK,
        None,
    ]


def test_the_switch_wins_over_the_census() -> None:
    assert Harvest.resolve_value("", True) is DSPARK
    assert Harvest.resolve_value("", False) is DFLASH
    assert Harvest.resolve_value("dflash", True) is DFLASH
    assert Harvest.resolve_value("dspark", False) is DSPARK
    with refuses("harvest-unknown"):
        Harvest.resolve_value("shifted", True)


def test_the_census_of_training() -> None:
    own = {"projector_type": "dspark"}
    assert is_dspark_strategy({"architectures": ["DSparkDraftModel"]})
    assert is_dspark_strategy({"dflash_config": own})
    assert is_dspark_strategy({"architectures": ["Qwen3DSparkModel"], "dflash_config": own})
    gqa = {"architectures": ["Qwen3DFlashModel"], "dflash_config": {"attention_mode": "gqa"}}
    assert not is_dspark_strategy(gqa)
    assert not is_dspark_strategy({})


def harvested(read: Harvest, trained: Harvest, block: int = 7) -> int:
    """Accepted drafts when rows trained one way are read another way; token = 1000 + offset."""
    rows = [1000 + trained.trained_offset_of_row(r) for r in range(block)]
    drafts = rows[read.first_row :]
    return accept_prefix([1000, *drafts], [1001 + j for j in range(len(drafts) + 1)])


def test_only_the_trained_harvest_is_accepted() -> None:
    assert harvested(DSPARK, DSPARK) == 7
    assert harvested(DFLASH, DFLASH) == 6
    assert harvested(DFLASH, DSPARK) == 0
