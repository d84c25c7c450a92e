"""Everything drafters and speculation refuse, each with a code of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsv4.errors import Refusal

RULES: Final[Mapping[str, str]] = {
    # Walks through candidates.
    "walk-unary-length": "a walk needs one value for every slot and candidate",
    "walk-ids-length": "a walk needs one id for every slot and candidate",
    "walk-hidden-length": "a walk needs one hidden row of the codebook's rank for every slot",
    "walk-predecessor-range": "the token before a slot must be a row of the predecessor codebook",
    "walk-candidate-range": "every candidate must be a row of the successor codebook",
    "walk-temperature": "a sampled walk needs a temperature above 0",
    # Confidence, harvest, window, acceptance.
    "confidence-input": "a confidence head takes the hidden row, and the token's row if it was"
    " trained with it",
    "harvest-unknown": "a harvest is dflash or dspark",
    "harvest-dflash2": "a DFlash2 drafter fills masks: its rows speak about their own position",
    "window-adapt": "a confidence policy sizes every window, so adaptation cannot be off",
    "tau-syntax": "tau is a plain decimal number",
    "tau-range": "tau lies strictly between 0 and 1",
    "window-unknown": "a window policy is ladder, confidence or confidence-slot",
    "accept-length": "every judged draft needs a q and a uniform number",
    # Configurations.
    "dflash2-config": "a DFlash2 configuration keeps its options in dflash_config",
    "key-missing": "the configuration must say this",
    "draft-key-missing": "the drafter's options must say this",
    "layer-types-missing": "layer_types says which layers slide",
    "window-missing": "sliding layers need sliding_window",
    "eps-missing": "norms need rms_norm_eps",
    "theta-missing": "rotation needs rope_theta",
    "rope-missing": "a DFlash2 configuration keeps its rotation in rope_parameters",
    "rope-type": "this kind of rotation is not built",
    "causal": "a DFlash2 drafter says is_causal false",
    "not-sliding": "all layers of a DFlash2 drafter slide",
    "block-window": "a block must fit into the window of its layers",
    # Tensors.
    "tensor-missing": "a tensor is missing",
    "markov-w2-missing": "a token bias has two tables",
    "confidence-bias-missing": "a confidence head has a bias",
    "confidence-width": "a confidence head is as wide as a hidden row, or that and a table row",
    "dflash2-heads": "a DFlash2 drafter has neither a token bias nor a confidence head",
    "conv-base": "a convolution's base kernel is [2, taps, hidden]",
    "conv-projection": "a convolution's kernel projection is [2 taps groups, hidden]",
    "codebook-missing": "a candidate selector has two codebooks",
    "codebook-rank": "codebook rows are as wide as the configuration says",
    "codebook-vocab": "both codebooks have one row for every token",
    "hidden-projection": "a selector's hidden projection is [rank, hidden]",
    "tensor-unused": "every tensor of a drafter with a head of its own must be used",
    "yarn-incomplete": "YaRN needs its factor, its original length and both betas",
    # Calls of a drafter.
    "not-dflash2": "only DFlash2 drafters select candidates",
    "codebook-target": "every token of the target needs a row in the codebooks",
    "positions-context": "context and block rows need one position each, consecutive from 0",
    "positions-block": "every block row needs a position, behind the context",
    "draft-kv-overflow": "context rows must fit into the drafter's cache",
    # Loops and sessions.
    "dense-dflash2": "the dense loop drafts with DFlash and DSpark drafters only",
    "hidden-mismatch": "drafter and target share their hidden width",
    "context-window": "a drafter without windows must see its whole context",
    "gemma-target": "this target cannot be rolled back by this loop",
    "confidence-missing": "a confidence policy needs a confidence head",
    "gate-sampled": "the checkpoint gate compares greedy rounds",
    "session-penalties": "a sampled session has no repetition penalties",
    "session-prompt": "the prompt and one block must fit into the session's context",
    "replay-differs": "replaying a prefix gives the tokens of its verify round",
    "gate-differs": "both ways to commit a prefix leave the same state",
    "internal": "the round is in a state that cannot be",
    # Beyond the 55.
    "dtype": "drafter tensors are bfloat16",
    "group-size": "convolution groups divide the hidden width",
    "markov-vocab": "the token tables have one row for every token of the target",
    "mask-id": "the mask token has an embedding row",
    "head-groups": "key heads divide query heads",
    "head-odd": "rotation turns pairs of lanes",
    "taps-empty": "a drafter reads at least one layer of the target",
    "tap-range": "taps are layers of the target",
    "prompt-empty": "a prompt has at least one token",
    "tensor-shape": "a tensor has the shape that the configuration implies",
    "quant-width": "quantised rows come in blocks of 32",
    "precision": "a precision is q8, q4, bf16, mixed or fc",
    "layer-types-length": "layer_types names every layer",
    "selector-k": "a selector takes 1 to 32 candidates",
    "markov-type": "a token bias is vanilla, gated or rnn",
    "rope-style": "rotation pairs the two halves of a head",
    "attention-bias": "attention projections have no bias",
    "contradiction": "two places of the configuration, or it and the tensors, must agree",
    "value": "a value of the configuration is out of its range",
    "architecture": "this architecture is not built",
    "attention-rule": "an attention rule is seed or causal_swa",
    "switch": "a switch has one of its values",
    "target-parallel": "drafters read the whole head of their target",
    "target-context": "a run must fit into the positions that its target was loaded for",
    "temperature": "sampling needs a temperature above 0",
}


class DrafterRefusal(Refusal):
    """A refusal of a drafter, its configuration, or a speculative run; `code` is a key of RULES."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the code beside the message."""
        super().__init__(message)
        self.code = code


def refuse(code: str, asked: str, found: str, todo: str) -> DrafterRefusal:
    """The refusal of a rule: what was asked, what was found, the rule, what to do next."""
    return DrafterRefusal(code, f"{asked}: {found}\n  {RULES[code]} [{code}]\n  {todo}")
