"""The environment switches of drafting, read once into a value that tests can make by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsv4.speculation.refusals import refuse


@dataclass(frozen=True, slots=True)
class Switches:
    """What the environment asks for; the defaults are an empty environment.

    harvest, policy, tau, precision: as written, "" when unset. verify_t: None for the loop's own.
    adapt: the ladder moves. markov: the token bias is armed. clip: windowed attention walks only
    its window. defer: one readback for chain and verify where that is possible. batch_states:
    refresh one snapshot instead of making one each round. verify_graph: replay recorded rounds.
    tensor_cores: attention without windows on bf16 tensor cores. debug: the dense loop tells of
    every round.
    """

    harvest: str = ""
    policy: str = ""
    tau: str = ""
    adapt: bool = True
    verify_t: int | None = None
    markov: bool = True
    precision: str = ""
    clip: bool = True
    scale_embedding: bool = False
    no_rope: bool = False
    dump: str = ""
    stats: bool = False
    ckpt: bool = True
    gate: bool = False
    defer: bool = True
    batch_states: bool = True
    host_embedding: bool = False
    verify_graph: bool = False
    tensor_cores: bool = False
    debug: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Switches:
        """The switches of an environment. Errors: DrafterRefusal naming the variable."""
        env = os.environ if env is None else env
        verify_t = env.get("DSV4_DFLASH_VERIFY_T", "")
        return cls(
            harvest=env.get("DSV4_DSPARK_HARVEST", ""),
            policy=env.get("DSV4_DSPARK_VT", ""),
            tau=env.get("DSV4_DSPARK_VT_TAU", ""),
            adapt=env.get("DSV4_DFLASH_ADAPT", "") != "0",
            verify_t=int(verify_t) if re.fullmatch(r"[0-9]+", verify_t) else None,
            markov=_flag(env, "DSV4_DFLASH_MARKOV", True),
            precision=env.get("DSV4_DFLASH_PREC", ""),
            clip=_flag(env, "DSV4_DFLASH2_SDPA_CLIP", True),
            scale_embedding=_flag(env, "DSV4_DFLASH_EMB_SCALE", False),
            no_rope="DSV4_DFLASH_NOROPE" in env,
            dump=env.get("DSV4_DFLASH_DUMP", ""),
            stats=_flag(env, "DSV4_SPEC_STATS", False),
            ckpt=_flag(env, "DSV4_DSPARK_CKPT", True),
            gate=_flag(env, "DSV4_DSPARK_CKPT_GATE", False),
            defer=_flag(env, "DSV4_DSPARK_DEFER_READBACK", True),
            batch_states=_flag(env, "DSV4_STATE_COPY_BATCH", True),
            host_embedding=_flag(env, "DSV4_SPEC_HOST_EMBD", False),
            verify_graph=_flag(env, "DSV4_DSPARK_VERIFY_GRAPH", False),
            tensor_cores="DSV4_DFLASH_FA" in env,
            debug=_flag(env, "DSV4_DFLASH_DEBUG", False),
        )


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    value = env.get(name, "")
    if value not in ("", "0", "1"):
        raise refuse("switch", name, repr(value), "set it to 0 or 1, or unset it")
    return default if value == "" else value == "1"
