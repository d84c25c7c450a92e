"""`dsv4-lab draft`: speculative generation with a target and its drafter."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from dsv4.drafters.backbone import BlockDrafter
from dsv4.drafters.quant import PRECISIONS, precision_named
from dsv4.drafters.sampler import DeviceSampler
from dsv4.drafters.weights import ATTENTION_RULES
from dsv4.runtime.device import open_device
from dsv4.speculation.loops import Generation, generate, plain, positions_needed
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import POLICIES
from lab.cli import text
from lab.cli.prompts import whole_numbers
from lab.cli.settings import current
from lab.draft_pairs import OpenTarget, block_size, open_drafter, open_target
from lab.record.environment import capture


@click.command()
@click.argument("target_dir", metavar="TARGET_DIR", type=click.Path(path_type=Path))
@click.argument("drafter_dir", metavar="DRAFTER_DIR", type=click.Path(path_type=Path))
@click.option("--ids", required=True, metavar="LIST", help="The prompt, 1,2,3.")
@click.option("-n", "count", type=click.IntRange(1), default=64, show_default=True, metavar="N",
              help="Emit at most so many tokens.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0), default=0.0, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(0), default=0, help="0 is off.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="1 is off.")
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="0 is off.")
@click.option("--policy", type=click.Choice(POLICIES), help="What sizes the verified window.")
@click.option("--tau", type=float, metavar="P", help="Threshold of the confidence policies.")
@click.option("--prec", type=click.Choice(PRECISIONS), help="How the drafter's matrices are kept.")
@click.option("--rule", type=click.Choice(ATTENTION_RULES), default="seed",
              help="What sliding layers of drafters without windows see.")  # fmt: skip
@click.option("--eos/--no-eos", default=True, help="Stop at the target's end tokens.")
@click.option("--warm", is_flag=True,
              help="Run once before, so that the clocks see no kernel being loaded.")  # fmt: skip
@click.option("--check", is_flag=True, help="Compare with the target's own greedy tokens.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="Where it runs.")  # fmt: skip
def draft(
    target_dir: Path,
    drafter_dir: Path,
    ids: str,
    count: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    policy: str | None,
    tau: float | None,
    prec: str | None,
    rule: str,
    eos: bool,
    warm: bool,
    check: bool,
    backend: str,
) -> None:
    """Generate tokens after a prompt, drafted in blocks and verified by the target.

    Greedy tokens are those of the target alone, byte for byte. The switches DSV4_DSPARK_* and
    DSV4_DFLASH_* are read; options win over them. TARGET_DIR is a folder of a Qwen3, Qwen3-Next,
    Qwen3.5 or V4 model; both may be made: mint:qwen3-0.6b, mint:tiny and the like as target,
    mint:dflash, mint:dspark or mint:dflash2 as a drafter that fits it.

    \b
    Example:
      dsv4-lab draft checkpoints/qwen3 checkpoints/dflash --ids 1,2,3 -n 64 --json
      dsv4-lab draft mint:qwen3-0.6b,agree=1 mint:dspark,agree=0.8 --ids 1,2,3
    """
    if check and temperature > 0:
        raise click.UsageError("--check compares greedy tokens; leave --temperature at 0")
    prompt = whole_numbers(ids)
    switches = replace(Switches.from_env(), stats=True)
    if policy is not None:
        switches = replace(switches, policy=policy)
    if tau is not None:
        switches = replace(switches, tau=repr(tau))
    device = open_device(backend, index=current().device)
    positions = positions_needed(block_size(drafter_dir), prompt, count)
    target = open_target(target_dir, device, positions, switches)
    drafter = open_drafter(drafter_dir, target, precision=prec or "", rule=rule, switches=switches)
    banner = drafter.census.banner(precision_named(prec or switches.precision), rule, switches)
    if not current().json:
        text.say(text.table(("drafter", ""), list(banner.items())) + "\n")
    sampling = SpecSampling(temperature, current().seed, top_k, top_p, min_p)
    ends = target.eos if eos else ()

    def run() -> Generation:
        return generate(
            target,
            drafter,
            prompt,
            count,
            eos=ends,
            sampling=sampling if temperature > 0 else None,
            switches=switches,
            sampler=DeviceSampler(target.ops),
        )

    if warm:
        run()
    begin = time.perf_counter()
    found = run()
    wall_s = time.perf_counter() - begin
    same = plain(target, prompt, count, eos=ends) == list(found.tokens) if check else None
    _show(found, banner, target, drafter, wall_s, same)
    if same is False:
        raise refuse("replay-differs", "--check", "other tokens than the target alone",
                     "rows of this target depend on how many are verified")  # fmt: skip


def _show(
    found: Generation,
    banner: dict[str, str],
    target: OpenTarget,
    drafter: BlockDrafter,
    wall_s: float,
    same: bool | None,
) -> None:
    stats = found.stats
    decode_s = wall_s - stats.prime_s
    if current().json:
        text.emit_json(
            "draft",
            env=capture(target.ops.device),
            device=target.ops.device.name,
            target=dict(kind=target.kind, hidden=target.hidden, layers=target.n_layers),
            drafter=banner,
            tokens=list(found.tokens),
            rounds=[
                dict(
                    start=r.start,
                    anchor=r.anchor,
                    drafts=list(r.drafts),
                    verified=r.vt,
                    accepted=r.accepted,
                    next_token=r.next_token,
                )
                for r in stats.rounds
            ],
            attempted=stats.attempted,
            accepted=stats.accepted,
            acceptance=stats.acceptance,
            accepted_by_position=stats.accepted_by_position,
            tokens_per_round=stats.tokens_per_round,
            verify_rate=stats.verify_rate,
            phase_s=stats.phase_s,
            prime_s=stats.prime_s,
            decode_s=decode_s,
            tokens_per_s=len(found.tokens) / decode_s,
            device_events=found.sctr,
            host_uniforms=found.uctr,
            equals_plain=same,
        )
        return
    text.say(" ".join(str(t) for t in found.tokens) + "\n")
    text.say(stats.line())
    text.say(
        f"prime {text.scaled(stats.prime_s, 's')}, {len(found.tokens) / decode_s:.4g} tokens/s on"
        f" {target.ops.device.name} ({drafter.config.family})"
    )
    if same is not None:
        text.say("tokens of the target alone: " + text.verdict("SAME" if same else "FAIL"))
