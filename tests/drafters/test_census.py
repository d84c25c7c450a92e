"""The census of drafter tensors: what each file is, and every refusal by its code."""

import pytest

from dsv4.drafters.census import CONFIDENCE, HIDDEN_PROJECTION, W1, W2, published_name
from dsv4.speculation.switches import Switches
from tests.drafters.small import VOCAB, census, shapes
from tests.speculation.refusing import refuses

BOOKS = [f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor")]
CONV = "layers.1.mlp_conv."


def test_what_each_family_holds() -> None:
    plain, spark, second = (census(f) for f in ("dflash", "dspark", "dflash2"))
    assert (plain.markov_rank, plain.has_confidence, plain.codebook_vocab) == (0, False, 0)
    assert (spark.markov_rank, spark.confidence_width, spark.with_markov) == (32, 96, True)
    assert second.codebook_vocab == VOCAB


@pytest.mark.parametrize("layers", [5])
def test_tensor_counts_of_published_files(layers: int) -> None:
    kinds = {"full_attention": ("dflash", "dspark"), "sliding_attention": ("dflash2",)}
    from dsv4.drafters.census import trunk_shapes
    from dsv4.drafters.config import draft_config
    from tests.drafters.small import content

    for kind, families in kinds.items():
        for family in families:
            config = draft_config(
                content(family, num_hidden_layers=layers, layer_types=[kind] * layers)
            )
            assert len(trunk_shapes(config)) == 58
    # 4 head tensors make it 62; 4 a layer and 3 of the selector make it 81.
    assert 58 + 4 == 62 and 58 + 4 * layers + 3 == 81
    extra = {f: len(shapes(f)) - len(shapes("dflash")) for f in ("dspark", "dflash2")}
    assert extra == {"dspark": 4, "dflash2": 4 * 2 + 3}


@pytest.mark.parametrize(
    ("family", "name", "code"),
    [
        ("dflash", "fc.weight", "tensor-missing"),
        ("dflash", "layers.1.self_attn.q_norm.weight", "tensor-missing"),
        ("dspark", W2, "markov-w2-missing"),
        ("dspark", CONFIDENCE[1], "confidence-bias-missing"),
        ("dflash2", f"{CONV}base_kernel", "conv-base"),
        ("dflash2", f"{CONV}kernel_projection.weight", "conv-projection"),
        ("dflash2", BOOKS[0], "codebook-missing"),
        ("dflash2", BOOKS[1], "codebook-missing"),
        ("dflash2", HIDDEN_PROJECTION, "hidden-projection"),
    ],
)
def test_a_missing_tensor_is_refused_by_its_code(family: str, name: str, code: str) -> None:
    stored = shapes(family)
    del stored[name]
    with refuses(code):
        census(family, tensors=stored)


@pytest.mark.parametrize(
    ("family", "name", "shape", "code"),
    [
        ("dflash", "fc.weight", (64, 64), "tensor-shape"),
        ("dflash", "layers.0.self_attn.k_proj.weight", (64, 64), "tensor-shape"),
        ("dspark", CONFIDENCE[0], (1, 70), "confidence-width"),
        ("dspark", W1, (96, 32), "markov-vocab"),
        ("dflash2", f"{CONV}base_kernel", (2, 3, 64), "conv-base"),
        ("dflash2", f"{CONV}kernel_projection.weight", (8, 64), "conv-projection"),
        ("dflash2", BOOKS[1], (VOCAB, 4), "codebook-rank"),
        ("dflash2", BOOKS[1], (96, 8), "codebook-vocab"),
        ("dflash2", HIDDEN_PROJECTION, (8, 32), "hidden-projection"),
    ],
)
def test_a_misshapen_tensor_is_refused_by_its_code(
    family: str, name: str, shape: tuple[int, ...], code: str
) -> None:
    with refuses(code):
        census(family, tensors=shapes(family) | {name: ("BF16", shape)})


@pytest.mark.parametrize("name", shapes("dflash"))
def test_every_tensor_of_the_trunk_is_needed_in_its_shape(name: str) -> None:
    stored = shapes("dflash")
    with refuses("tensor-shape"):
        census("dflash", tensors=stored | {name: ("BF16", (*stored[name][1], 1))})
    with refuses("dtype"):
        census("dflash", tensors=stored | {name: ("F16", stored[name][1])})
    del stored[name]
    with refuses("tensor-missing"):
        census("dflash", tensors=stored)


def test_other_number_formats_are_refused() -> None:
    with refuses("dtype"):
        census("dflash", tensors=shapes("dflash") | {"norm.weight": ("F32", (64,))})


def test_a_dflash2_drafter_has_no_other_heads() -> None:
    for name, shape in ((W1, (VOCAB, 8)), (CONFIDENCE[0], (1, 64))):
        with refuses("dflash2-heads"):
            census("dflash2", tensors=shapes("dflash2") | {name: ("BF16", shape)})


@pytest.mark.parametrize("family", ["dspark", "dflash2"])
def test_a_tensor_that_nobody_reads_is_refused_beside_heads(family: str) -> None:
    with refuses("tensor-unused"):
        census(family, tensors=shapes(family) | {"extra.weight": ("BF16", (3,))})


def test_a_plain_drafter_ignores_what_nobody_reads_and_says_so() -> None:
    found = census("dflash", tensors=shapes("dflash") | {"extra.weight": ("BF16", (3,))})
    assert found.ignored == ("extra.weight",)


def test_copies_of_the_target_tables_belong_to_one_packaging_only() -> None:
    tables = {n: ("BF16", (VOCAB, 64)) for n in ("embed_tokens.weight", "lm_head.weight")}
    stored = shapes("dspark") | tables
    assert census("dspark", tensors=stored, architectures=["Qwen3DSparkModel"]).own_tables
    with refuses("tensor-unused"):
        census("dspark", tensors=stored)
    with refuses("tensor-shape"):
        wrong = stored | {"lm_head.weight": ("BF16", (VOCAB, 63))}
        census("dspark", tensors=wrong, architectures=["Qwen3DSparkModel"])


@pytest.mark.parametrize(
    "claim",
    [
        dict(own_markov_rank=16),
        dict(own_enable_confidence_head=False),
        dict(own_confidence_head_with_markov=False),
    ],
)
def test_a_claim_that_the_tensors_contradict_is_refused(claim: dict[str, object]) -> None:
    with refuses("contradiction"):
        census("dspark", **claim)


@pytest.mark.parametrize("kind", ["gated", "rnn"])
def test_other_token_biases_bring_their_own_tensors(kind: str) -> None:
    assert census("dspark", tensors=shapes("dspark", kind), own_markov_head_type=kind).markov_rank
    with refuses("tensor-missing"):
        census("dspark", own_markov_head_type=kind)
    with refuses("markov-type"):
        census("dspark", tensors=shapes("dspark", kind))


def test_the_codebooks_cover_the_target() -> None:
    assert census("dflash2", vocab=VOCAB)
    with refuses("codebook-target"):
        census("dflash2", vocab=VOCAB + 1)


def test_older_names_are_read_too() -> None:
    assert published_name("logit_head.markov_head.markov_w1.weight") == W1
    assert published_name("encoder.output_norm_enc.weight") == "hidden_norm.weight"
    assert published_name("candidate_selector.successor_codebook.weight") == BOOKS[1]
    assert published_name("fc.weight") == "fc.weight"


def test_the_banner_names_every_choice() -> None:
    lines = census("dspark").banner("q8", "seed", Switches())
    assert lines["harvest"] == "dspark (dflash2 0, dspark 1, switch unset)"
    assert lines["window policy"] == "confidence-slot, tau 0.5, confidence head"
    assert lines["rope"] == "theta 1e+06, plain"
    assert census("dflash").banner("q8", "seed", Switches())["window policy"] == (
        "ladder, no confidence head"
    )
