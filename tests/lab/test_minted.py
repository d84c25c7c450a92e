"""`mint:SIZE,...` where a checkpoint folder is asked for."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsv4.checkpoint.mint import MintPlan
from dsv4.errors import Refusal
from lab.cli.main import main
from lab.minted import model_of


def test_a_folder_stays_a_folder() -> None:
    assert model_of(Path("some/where")) == Path("some/where")


def test_a_plan_takes_its_layout_layers_experts_and_seed() -> None:
    plan = model_of("mint:tiny,layout=nextn,seed=7")
    assert isinstance(plan, MintPlan)
    assert (plan.size, plan.layout_name, plan.seed) == ("tiny", "nextn", 7)
    pruned = model_of("mint:flash,layers=2,experts=16")
    assert isinstance(pruned, MintPlan)
    assert (pruned.config.n_layers, pruned.config.n_routed_experts) == (2, 16)


@pytest.mark.parametrize("text", ["mint:tiny,depth=3", "mint:tiny,layers=two", "mint:tiny,layout="])
def test_an_unknown_setting_is_refused_with_what_it_takes(text: str) -> None:
    with pytest.raises(Refusal, match="layers=N"):
        model_of(text)


def test_a_minted_model_generates_without_a_file() -> None:
    arguments = ["generate", "mint:tiny,seed=3", "--ids", "1,2,3", "-n", "4", "--backend", "host"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(main, [*arguments, "--json"])
    assert again.exit_code == 0


def test_a_minted_model_is_placed_and_drafts_without_a_file() -> None:
    placed = CliRunner().invoke(main, ["place", "mint:flash,layers=2,experts=16", "--json"])
    assert placed.exit_code == 0, placed.output
    assert json.loads(placed.stdout)["stages"][0]["bytes"] > 1e9
    spoken = CliRunner().invoke(
        main,
        ["spec", "mint:tiny,layout=0731,agree=1", "--ids", "3,5", "-n", "12", "--no-cost",
         "--backend", "host", "--json"],
    )  # fmt: skip
    assert spoken.exit_code == 0, spoken.output
    document = json.loads(spoken.stdout)
    assert document["identity"] and document["tokens_per_round"] > 2
