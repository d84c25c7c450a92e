"""Sequences of tokens from a corpus: shuffled pieces for training, windows for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tools.train.corpus import SourceFile
from tools.train.settings import BOS, EOS


def stream_of(files: Iterable[SourceFile]) -> np.ndarray:
    """Every file between its begin and end tokens, one after the other."""
    parts = []
    for file in files:
        content = np.frombuffer(file.content, np.uint8).astype(np.int16)
        parts += [np.array([BOS], np.int16), content, np.array([EOS], np.int16)]
    return np.concatenate(parts)


def training_stream(files: Sequence[SourceFile]) -> np.ndarray:
    """What an epoch takes: the library twice, its tests once.

    The held-out modules are library, and the tests are more than twice as long as it.
    """
    return stream_of([*files, *(f for f in files if not f.is_test)])


@dataclass(slots=True)
class Pieces:
    """Pieces of a stream in an order that is a function of the seed and a step's number.

    An epoch cuts the stream at an offset of its own and takes every piece once. A piece comes with
    the token before it.
    """

    stream: np.ndarray
    length: int
    seed: int
    _orders: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)

    def batch(self, step: int, size: int) -> np.ndarray:
        """The pieces of one step.  Shapes: -> [size, 1 + length]."""
        per_epoch = (len(self.stream) - 1) // self.length - 1
        rows = []
        for n in range(step * size, (step + 1) * size):
            order, offset = self._order(n // per_epoch, per_epoch)
            start = offset + order[n % per_epoch] * self.length
            rows.append(self.stream[start : start + self.length + 1])
        return np.stack(rows)

    def _order(self, epoch: int, count: int) -> tuple[np.ndarray, int]:
        if epoch not in self._orders:
            rng = np.random.default_rng((self.seed, epoch))
            self._orders = {epoch: (rng.permutation(count), int(rng.integers(self.length)))}
        return self._orders[epoch]


def read_and_said(pieces: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the model reads, what it should say) of pieces with the token before them.

    Every other piece begins with the begin token, as texts that are given to the model do; the
    others begin as a window in the middle of a text does.
    Shapes: [B,1+T] -> [B,T] twice.
    """
    tokens = torch.from_numpy(pieces).to(device).long()
    read, said = tokens[:, :-1].clone(), tokens[:, 1:]
    read[::2, 0] = BOS
    return read, said


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of one text: what is read, what should be said, and from which row on it counts.

    Shapes: read, said [n].
    """

    read: np.ndarray
    said: np.ndarray
    fresh: int


def windows(files: Iterable[SourceFile], context: int, stride: int) -> Iterator[Window]:
    """The windows that score every byte of every file once, as `dsv4-lab eval` lays them.

    A text begins with the begin token. Its first window has `context` tokens, every further one
    ends `stride` tokens later and counts those alone.
    """
    for file in files:
        tokens = np.concatenate([[BOS], np.frombuffer(file.content, np.uint8)]).astype(np.int16)
        done, last = 0, len(tokens) - 1
        while done < last:
            end = min(last, done + stride if done else context)
            start = max(0, end - context)
            yield Window(tokens[start:end], tokens[start + 1 : end + 1], done - start)
            done = end
