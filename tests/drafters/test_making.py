"""Made targets and drafters: published sizes, contents by seed and name, and refusals."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.checkpoint.agreeable import Language
from dsv4.drafters.census import take_census
from dsv4.drafters.config import draft_config
from dsv4.drafters.making import BLOCKS, made_drafter
from dsv4.drafters.quant import bf16_to_f32
from dsv4.errors import Refusal
from dsv4.runtime.hostdevice import HostDevice
from dsv4.targets.making import made_target
from tests.speculation.refusing import refuses

DEEP: Any = SimpleNamespace(hidden=1024, vocab=151936, n_layers=28)
SMALL: Any = SimpleNamespace(hidden=64, vocab=320, n_layers=4)


def test_the_published_size_has_its_parameters_and_tensors() -> None:
    plain = made_target("qwen3-0.6b", HostDevice())
    assert plain.parameters == 596_049_920
    assert len(plain.entries) == 2 + 28 * 11
    speaking = made_target("qwen3-0.6b", HostDevice(), share=1.0)
    assert speaking.parameters == plain.parameters + 151936 * 1024


@pytest.mark.parametrize("family", BLOCKS)
@pytest.mark.parametrize("target", [DEEP, SMALL], ids=["deep", "small"])
def test_a_made_drafter_fits_its_target_and_passes_its_own_census(family: str, target: Any) -> None:
    made = made_drafter(family, target, HostDevice())
    config = draft_config(made.content)
    shapes = {name: (t.dtype, t.shape) for name, t in made.entries.items()}
    census = take_census(config, shapes, target.vocab)
    assert (config.family, config.block_size) == (family, BLOCKS[family])
    assert config.hidden == target.hidden and not census.ignored
    if target is DEEP:
        assert config.target_layer_ids == (1, 7, 13, 19, 25)
        assert len(shapes) == {"dflash": 58, "dspark": 62, "dflash2": 81}[family]


def test_contents_follow_from_seed_and_name_alone() -> None:
    first, again, other = (
        made_target("qwen3-tiny", HostDevice(), seed=s, layers=n)
        for s, n in ((1, 4), (1, 2), (2, 4))
    )
    name = "model.layers.1.mlp.up_proj.weight"
    bits = first.tensor(name)
    assert bits.dtype == np.uint16 and bits.shape == (128, 64)
    assert np.array_equal(bits, again.tensor(name))
    assert not np.array_equal(bits, other.tensor(name))
    assert not np.array_equal(bits, first.tensor("model.layers.1.mlp.gate_proj.weight"))
    assert bf16_to_f32(bits).std() == pytest.approx(64**-0.5, rel=0.05)
    assert bf16_to_f32(first.tensor("model.norm.weight")).mean() == pytest.approx(1.0, abs=0.05)


def test_a_head_says_the_successor_of_the_token_whose_embedding_it_sees() -> None:
    made = made_target("qwen3-tiny", HostDevice(), seed=5, share=1.0)
    embed, head = (
        bf16_to_f32(made.tensor(n)) for n in ("model.embed_tokens.weight", "lm_head.weight")
    )
    said = (embed @ head.T).argmax(axis=1)
    assert (said == Language(320, 5, 1.0).successors()).mean() > 0.99


def test_a_fresh_convolution_passes_its_rows_on() -> None:
    made = made_drafter("dflash2", SMALL, HostDevice())
    kernel = bf16_to_f32(made.tensor("layers.0.mlp_conv.base_kernel"))
    assert kernel[:, 0].mean() == pytest.approx(1.0, abs=0.1)
    assert kernel[:, 1].mean() == pytest.approx(0.0, abs=0.1)


def test_what_cannot_be_made_is_refused() -> None:
    device = HostDevice()
    with refuses("value"):
        made_target("qwen3-8b", device)
    with refuses("value"):
        made_target("qwen3-tiny", device, share=1.5)
    with refuses("value"):
        made_drafter("eagle", SMALL, device)
    with refuses("value"):
        made_drafter("dflash", SMALL, device, share=0.5)
    with pytest.raises(Refusal, match="no 'lm_head.weight'"):
        made_target("qwen3-tiny", device).tensor("lm_head.weight")
