"""Whether a target, a drafter, a prompt and the switches fit each other, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4.drafters.config import check_taps
from dsv4.speculation.draft_model import DraftModel
from dsv4.speculation.harvest import Harvest
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import WindowPolicy
from dsv4.targets.protocol import SpecTarget


def admit(
    target: SpecTarget,
    drafter: DraftModel,
    prompt: Sequence[int],
    switches: Switches,
    sampling: SpecSampling | None,
) -> tuple[Harvest, WindowPolicy]:
    """The harvest and policy of a pair. Errors: DrafterRefusal when they do not fit each other."""
    c = drafter.config
    if not len(prompt):
        raise refuse("prompt-empty", "a speculative run", "an empty prompt", "give it a token")
    if target.rollback_kind not in ("kv", "hybrid"):
        raise refuse(
            "gemma-target",
            "a speculative run",
            f"a target that rolls back by {target.rollback_kind!r}",
            "use a target that rolls back by kv or hybrid",
        )
    if switches.verify_graph and not target.graphs:
        raise refuse(
            "switch",
            "DSV4_DSPARK_VERIFY_GRAPH=1",
            "a target whose rounds the host looks into, or whose arms record none",
            "unset it; for a V4 target on one device, DSV4_GRAPHS=on records its rounds",
        )
    if c.hidden != target.hidden:
        raise refuse(
            "hidden-mismatch",
            "a speculative run",
            f"a drafter of width {c.hidden}, a target of {target.hidden}",
            "use the target that the drafter was trained for",
        )
    if c.mask_token_id >= target.vocab:
        raise refuse(
            "mask-id",
            "a speculative run",
            f"mask token {c.mask_token_id} of {target.vocab} tokens",
            "use the target that the drafter was trained for",
        )
    check_taps(c, target.n_layers)
    outside = [i for i in prompt if not 0 <= i < target.vocab]
    if outside:
        raise refuse(
            "value",
            "a prompt",
            f"token {outside[0]} of {target.vocab}",
            "tokens are ids of the target's vocabulary",
        )
    policy = WindowPolicy.resolve(switches, drafter.has_confidence)
    if policy.is_confidence and not drafter.has_confidence:
        raise refuse(
            "confidence-missing",
            f"window policy {policy.kind}",
            "a drafter without a confidence head",
            "unset DSV4_DSPARK_VT",
        )
    if sampling is not None and switches.gate:
        raise refuse(
            "gate-sampled",
            "DSV4_DSPARK_CKPT_GATE=1",
            "a sampled run",
            "unset it, or run greedily",
        )
    harvest = Harvest.for_draft(c, switches)
    if harvest.n_drafts(c.block_size) < 1:
        raise refuse("value", "block_size", str(c.block_size), "a block has a draft")
    return harvest, policy
