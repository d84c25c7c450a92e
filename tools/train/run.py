"""One run from a corpus to an exported checkpoint; whatever stops it, the same command goes on."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsv4.checkpoint.config import ModelConfig
from dsv4.errors import Refusal
from tools.train.batches import Pieces, training_stream
from tools.train.card import card
from tools.train.corpus import Corpus, check_recorded, read_record
from tools.train.draft_run import train_drafter
from tools.train.evaluation import compressed_bits_per_byte
from tools.train.export import LAYOUTS, export
from tools.train.journal import STATE, Journal, load_state, save_state
from tools.train.judging import drafter_numbers, held_out_bits, trunk_numbers
from tools.train.laws import Law, engine, smooth
from tools.train.operators import rope_tables
from tools.train.optimiser import Optimiser, optimiser
from tools.train.parameters import initial, is_trunk, parameters
from tools.train.settings import SIZES, Settings, config_content, model_config
from tools.train.stored import read_weights
from tools.train.tables import hash_tables
from tools.train.trunk import model_of
from tools.train.trunk_run import Clock, Tables, bits, frozen, train_trunk

CORPUS, RESULT, CARD = "corpus.json", "result.json", "card.md"
_SAVE_EVERY_S = 60.0


@dataclass(slots=True)
class Run:
    """Everything that one run holds while it goes."""

    config: ModelConfig
    settings: Settings
    corpus: Corpus
    journal: Journal
    weights: dict[str, torch.Tensor]
    compute: torch.dtype
    tables: Tables
    clocks: dict[str, Clock]
    optimisers: dict[str, Optimiser]
    saved: float = 0.0
    leave_s: float = math.inf

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.weights["embed"].device


def run(
    corpus: Corpus,
    settings: Settings,
    folder: Path,
    *,
    device: torch.device,
    recorded: Mapping[str, Any] | None = None,
    quiet: bool = False,
    leave_after_s: float | None = None,
) -> dict[str, Any] | None:
    """Train trunk and drafter, export both layouts below `folder`, and give the result.

    leave_after_s: after so long the state is saved and nothing is given; the same call goes on.

    Errors: Refusal for another corpus than the recorded one, or settings that a run in the folder
    was not begun with.
    """
    begun_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    _check_corpus(corpus, folder, recorded)
    it = _opened(corpus, settings, folder, device, quiet)
    if leave_after_s is not None:
        it.leave_s = begun_s + leave_after_s
    try:
        _train(it)
    except _LeftError:
        save(it)
        it.journal.draw()
        return None
    torch.set_float32_matmul_precision("highest")
    result = _result(it)
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card(result), encoding="utf-8")
    it.journal.draw()
    return result


class _LeftError(Exception):
    """Ends training for now, between two steps."""


def _train(it: Run) -> None:
    settings, corpus, device = it.settings, it.corpus, it.device
    stream = training_stream(corpus.train)
    pieces = Pieces(stream, settings.length, settings.seed)
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")
    phase = it.optimisers["trunk"]
    it.journal.cut("trunk", phase.steps)
    train_trunk(it.config, settings, phase, pieces, it.tables, it.clocks["trunk"],
                compute=it.compute, report=lambda *a: _report(it, "trunk", *a))  # fmt: skip
    save(it)
    trunk = frozen(it.config, _trunk(it), engine(torch.float32, it.compute), it.tables)
    phase = it.optimisers["drafter"]
    it.journal.cut("drafter", phase.steps)
    train_drafter(it.config, settings, trunk, phase, pieces, it.tables, it.clocks["drafter"],
                  compute=it.compute, report=lambda *a: _report(it, "drafter", *a))  # fmt: skip
    save(it)


def save(it: Run) -> None:
    """Write the state from which the run can go on."""
    save_state(it.journal.folder, {
        "settings": dataclasses.asdict(it.settings),
        "weights": {n: w.detach() for n, w in it.weights.items()},
        "seconds": {n: c.seconds for n, c in it.clocks.items()},
        "optimisers": {n: {"steps": o.steps, "first": o.first, "second": o.second}
                       for n, o in it.optimisers.items()},
    })  # fmt: skip
    it.saved = time.monotonic()


def exported(source: Path, out: Path, layout: str) -> int:
    """Export the state of a run, or a checkpoint that a run exported, in a layout.

    A checkpoint holds what training computed with, so its numbers stay what they are.
    Errors: Refusal when the folder holds neither.
    """
    if (source / STATE).is_file():
        state = torch.load(source / STATE, map_location="cpu", weights_only=True)
        size, weights, remarks = state["settings"]["size"], state["weights"], _remarks(state)
    elif (source / "config.json").is_file():
        config, stored = read_weights(source)
        weights = {n: w.float() if w.is_floating_point() else w for n, w in stored.items()}
        found = [size for size in SIZES if model_config(size) == config]
        if not found:
            raise Refusal(
                f"an export was asked for; the checkpoint is of no size that is trained here\n"
                f"  {source}\n  give one that a run exported"
            )
        size, remarks = found[0], {}
    else:
        raise Refusal(
            f"an export was asked for; there is neither the state of a run nor a checkpoint\n"
            f"  {source}\n  give the folder of a run"
        )
    content = config_content(size, nvfp4=layout == LAYOUTS[1])
    return export(content, weights, out, layout=layout, remarks=remarks)


def _check_corpus(corpus: Corpus, folder: Path, recorded: Mapping[str, Any] | None) -> None:
    if recorded is not None:
        check_recorded(corpus, recorded)
    if (folder / CORPUS).is_file():
        check_recorded(corpus, read_record(folder / CORPUS))
    text = json.dumps(corpus.record(), indent=1)
    (folder / CORPUS).write_text(text + "\n", encoding="utf-8")


def _opened(
    corpus: Corpus, settings: Settings, folder: Path, device: torch.device, quiet: bool
) -> Run:
    config = model_config(settings.size)
    if settings.length > config.max_seq_len:
        raise Refusal(
            f"sequences of {settings.length} tokens were asked for; size {settings.size} has "
            f"{config.max_seq_len} positions\n  in the settings\n  give a shorter --length"
        )
    state = load_state(folder, settings, device)
    kinds = parameters(config)
    if state is None:
        made = hash_tables(config, training_stream(corpus.train), settings.seed)
        weights = {n: w.to(device) for n, w in initial(config, made, settings.seed).items()}
    else:
        weights = state["weights"]
    for name, w in weights.items():
        w.requires_grad_(kinds[name].kind != "table" and not name.endswith("gate.bias"))
    split = {
        "trunk": {n: w for n, w in weights.items() if is_trunk(n)},
        "drafter": {n: w for n, w in weights.items() if not is_trunk(n)},
    }
    optimisers = {name: optimiser(config, part) for name, part in split.items()}
    clocks = {
        "trunk": Clock(settings.steps, settings.minutes),
        "drafter": Clock(settings.draft_steps, settings.draft_minutes),
    }
    if state is not None:
        for name, kept in state["optimisers"].items():
            own = optimisers[name]
            own.steps, own.first, own.second = kept["steps"], kept["first"], kept["second"]
            clocks[name].seconds = state["seconds"][name]
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    tables = rope_tables(config, smooth(torch.float32), device)
    journal = Journal(folder, quiet)
    return Run(config, settings, corpus, journal, weights, compute, tables, clocks, optimisers,
               time.monotonic())  # fmt: skip


def _trunk(it: Run) -> dict[str, torch.Tensor]:
    return {n: w for n, w in it.weights.items() if is_trunk(n)}


def _report(it: Run, phase: str, step: int, share: float, numbers: dict[str, Any]) -> None:
    """Log every few steps, check the held-out text and save the state now and then."""
    s, clock, now = it.settings, it.clocks[phase], time.monotonic()
    due = now - it.saved > _SAVE_EVERY_S
    logged = step % 10 == 0 or s.steps <= 100
    # Looking at a number waits for the device, so not every step does.
    if (logged or due or now > it.leave_s) and not math.isfinite(float(numbers["loss"])):
        raise Refusal(
            f"the loss of {phase} step {step} is {float(numbers['loss'])}\n"
            f"  in {it.journal.folder}\n  begin again in a new folder, with a lower --rate"
        )
    if logged:
        entry = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in numbers.items()}
        entry["loss_bits"] = bits(entry.pop("loss"))
        speed = (step + 1) / max(clock.seconds, 1e-9)
        entry |= {"step": step, "share": share, "seconds": clock.seconds}
        if step and step % s.evaluate_every == 0:
            law = engine if numbers["coded"] else smooth
            entry |= _looked_at(it, phase, law(torch.float32, it.compute))
        it.journal.write(phase=phase, **entry)
        held = entry.get("held_out_bits")
        it.journal.progress(
            f"{phase} {share:5.1%}  step {step}  {entry['loss_bits']:.3f} bits"
            f"  {speed:.2f} steps/s" + (f"  held out {held:.3f}" if held else "")
        )
    if now > it.leave_s:
        raise _LeftError
    if due:
        save(it)
        it.journal.draw()


def _looked_at(it: Run, phase: str, law: Law) -> dict[str, Any]:
    judge = trunk_numbers if phase == "trunk" else drafter_numbers
    return judge(it.config, it.weights, law, it.tables, it.corpus.held_out, it.settings.length)


def _result(it: Run) -> dict[str, Any]:
    """Held-out figures of the final weights, both exports, and how they came to be."""
    s, folder = it.settings, it.journal.folder
    law = engine(torch.float32)
    model = frozen(it.config, _trunk(it), law, it.tables)
    smooth_model = model_of(it.config, model.weights, smooth(torch.float32), tables=it.tables)
    byte_bits, without = (
        held_out_bits(m, it.corpus.held_out, s.judged_windows)
        for m in (model, smooth_model)
    )  # fmt: skip
    others = compressed_bits_per_byte(it.corpus.held_out)
    state = {"settings": dataclasses.asdict(s), "weights": it.weights}
    sizes = {}
    for layout in LAYOUTS:
        out = folder / layout
        if not (out / "config.json").exists():
            content = config_content(s.size, nvfp4=layout == LAYOUTS[1])
            export(content, it.weights, out, layout=layout, remarks=_remarks(state))
        sizes[layout] = sum(f.stat().st_size for f in out.iterdir())
    record = it.corpus.record()
    return {
        "corpus": {k: record[k] for k in ("release", "licence", "train", "held_out")},
        "bits_per_byte": {"engine": byte_bits, "without_activation_codes": without, **others},
        "below_xz": 1.0 - byte_bits / others["xz"],
        "drafter": _looked_at(it, "drafter", law),
        "sizes_bytes": sizes,
        "parameters": sum(w.numel() for w in it.weights.values()),
        "steps": {n: o.steps for n, o in it.optimisers.items()},
        "seconds": {n: c.seconds for n, c in it.clocks.items()},
        "settings": dataclasses.asdict(s),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if it.device.type == "cuda" else "cpu",
    }


def _remarks(state: Mapping[str, Any]) -> dict[str, str]:
    s = state["settings"]
    return {"trained": f"{s['size']} seed {s['seed']}", "licence": "weights: PSF-2.0 text"}
