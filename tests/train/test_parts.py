"""Parts of training that no run would show to be wrong: steps, pieces, windows, tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tools.train.corpus import SourceFile
from tools.train.picture import picture
from tools.train.settings import BOS, EOS, SIZES, Settings, model_config, settings_of

torch = pytest.importorskip("torch", reason="training needs torch: pip install dsv4-lab[train]")

from tools.train.attention import index_loss  # noqa: E402
from tools.train.batches import Pieces, read_and_said, stream_of, training_stream, windows  # noqa: E402
from tools.train.draft_run import path, rows_of, some_anchors  # noqa: E402
from tools.train.experts import route  # noqa: E402
from tools.train.optimiser import Optimiser, is_matrix, orthogonal  # noqa: E402
from tools.train.parameters import initial, parameters  # noqa: E402
from tools.train.streams import sinkhorn  # noqa: E402
from tools.train.tables import hash_tables  # noqa: E402
from tools.train.trunk_run import Clock, fall  # noqa: E402

FILES = [SourceFile("a.py", bytes(range(200)) * 3), SourceFile("b.py", b"xyz" * 100)]


@pytest.mark.parametrize("size", SIZES)
def test_fresh_weights_have_the_censuss_names_and_shapes(size: str) -> None:
    config = model_config(size)
    made = initial(config, hash_tables(config, stream_of(FILES), 0), 0)
    expected = parameters(config)
    assert {n: tuple(w.shape) for n, w in made.items()} == {n: p.shape for n, p in expected.items()}


def test_hash_tables_share_the_work_out() -> None:
    config, stream = model_config("stdlib"), stream_of(FILES)
    for name, table in hash_tables(config, stream, 1).items():
        assert name.endswith("tid2eid")
        rows = np.sort(table.numpy(), axis=1)
        assert (rows[:, 1:] > rows[:, :-1]).all()
        load = np.bincount(table.numpy()[stream].ravel(), minlength=config.n_routed_experts)
        assert load.max() < 1.25 * load.mean()


def test_pieces_of_an_epoch_cover_the_stream_once() -> None:
    stream = np.arange(1001, dtype=np.int16)
    pieces = Pieces(stream, 10, 7)
    epoch = np.concatenate([pieces.batch(step, 9) for step in range(11)])
    assert epoch.shape == (99, 11)
    assert len(np.unique(epoch[:, 1:])) == 990
    assert np.array_equal(pieces.batch(3, 9), Pieces(stream, 10, 7).batch(3, 9))
    assert not np.array_equal(pieces.batch(11, 9), pieces.batch(0, 9))


def test_every_other_piece_is_read_from_a_begin_token() -> None:
    read, said = read_and_said(np.arange(12).reshape(2, 6), torch.device("cpu"))
    assert read.tolist() == [[BOS, 1, 2, 3, 4], [6, 7, 8, 9, 10]]
    assert said.tolist() == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]]


def test_an_epoch_takes_the_library_twice_and_its_tests_once() -> None:
    test = SourceFile("test/test_a.py", b"t")
    once, tested = stream_of(FILES), stream_of([test])
    taken = training_stream([FILES[0], test, FILES[1]])
    mixed = stream_of([FILES[0], test, FILES[1]])
    assert np.array_equal(taken, np.concatenate([mixed, once]))
    assert len(taken) == 2 * len(once) + len(tested)


def test_a_stream_holds_files_between_their_tokens() -> None:
    stream = stream_of(FILES).tolist()
    assert stream[:2] == [BOS, 0] and stream[601:603] == [EOS, BOS] and stream[-1] == EOS


@pytest.mark.parametrize("stride", [64, 32, 1])
def test_windows_count_every_byte_once(stride: int) -> None:
    found = list(windows(FILES, 64, stride))
    counted = [w.said[w.fresh :].astype(np.uint8).tobytes() for w in found]
    assert b"".join(counted) == b"".join(f.content for f in FILES)
    assert found[0].read[0] == BOS and found[0].fresh == 0
    assert all(np.array_equal(w.read[1:], w.said[:-1]) and len(w.read) == 64 for w in found)


def test_orthogonal_steps_have_singular_values_near_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 64, 128), (2, 128, 32)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=generator)))
        assert 0.3 < values.min() and values.max() < 1.4


def test_adam_steps_by_its_rate_and_matrices_by_theirs() -> None:
    weights = {
        "norm": torch.ones(8, requires_grad=True),
        "layers.0.attn.wkv": torch.zeros(16, 16, requires_grad=True),
    }
    assert [is_matrix(n) for n in weights] == [False, True]
    for w in weights.values():
        w.grad = torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    sign = weights["norm"].grad.sign()
    Optimiser(weights, 1).step(0.1, 0.01, 0.0)
    assert torch.allclose(weights["norm"].detach(), 1.0 - 0.01 * sign, atol=1e-4)
    assert 0.03 < torch.linalg.svdvals(weights["layers.0.attn.wkv"].detach()).max() < 0.14
    assert all(w.grad is None for w in weights.values())


def test_equal_scores_route_to_the_lowest_ids() -> None:
    config = model_config("smoke")
    w = {"gate": torch.zeros(4, 3), "gate.bias": torch.tensor([0.0, 0.5, 0.0, 0.0])}
    weights, chosen = route(config, w, "", torch.ones(2, 3), torch.zeros(2, dtype=torch.long))
    assert chosen.tolist() == [[1, 1, 0, 0]] * 2
    assert torch.allclose(weights.sum(-1), torch.tensor(config.route_scale))


def test_sinkhorn_columns_sum_to_one() -> None:
    logits = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    made = sinkhorn(logits, 4, 20, 1e-6)
    assert torch.allclose(made.sum(-2), torch.ones(5, 4, dtype=torch.float64), atol=1e-5)


def test_the_indexers_loss_is_zero_where_it_agrees_and_has_no_nan() -> None:
    mass = torch.tensor([[[0.2, 0.6, 0.0], [0.0, 0.0, 0.0]]])
    chosen = torch.tensor([[[True, True, False], [False, False, False]]])
    scores = torch.tensor([[[math.log(1.0), math.log(3.0), 9.0], [1.0, 2.0, 3.0]]])
    scores.requires_grad_()
    loss = index_loss(scores.masked_fill(~chosen, -math.inf), mass, chosen)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-6
    assert scores.grad.isfinite().all() and scores.grad.abs().max() < 1e-6


def test_only_rows_behind_the_trunks_own_tokens_are_on_its_path() -> None:
    best, following = torch.tensor([[[1, 2, 3, 4]]]), torch.tensor([[[1, 2, 9, 4]]])
    assert path(best, following).tolist() == [[[True, True, True, False]]]


def test_rows_of_anchors_lie_within_the_sequence() -> None:
    config = model_config("smoke")
    settings = settings_of({"size": "smoke", "anchors": 1000})
    anchors = some_anchors(config, settings, 0, torch.Size((3, 40)))
    assert anchors.shape == (3, 35) and anchors.min() == 0
    assert rows_of(config, anchors).max() == 39


def test_the_rate_rises_stays_and_falls() -> None:
    assert fall(0.0, 0.1, 0.5) < 0.05
    assert fall(0.3, 0.1, 0.5) == 1.0
    assert fall(0.75, 0.1, 0.5) == pytest.approx(0.5)
    assert fall(1.0, 0.1, 0.5) == 0.01


def test_a_run_ends_by_steps_or_by_time() -> None:
    assert Clock(10, None, 1e6).share(5) == 0.5
    assert Clock(10, 1.0, 45.0).share(5) == 0.75
    assert Settings().length <= model_config("stdlib").max_seq_len


def test_a_picture_names_its_lines() -> None:
    drawn = picture("a < b", {"one": [(0, 1), (5, 3)]}, x_name="x", y_name="y")
    assert "a &lt; b" in drawn and ">one<" in drawn and drawn.startswith("<svg")
    with pytest.raises(ValueError, match="no points"):
        picture("t", {"one": []}, x_name="x", y_name="y")
