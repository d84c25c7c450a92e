"""The rules that a checkpoint must keep, by name, and the refusal that names the broken one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsv4.errors import Refusal

RULES: Final[Mapping[str, str]] = {
    # Configuration.
    "architecture": "the configuration is of a DeepSeek-V4 model",
    "config-value": "a configuration key holds a value of its kind",
    "config-contradiction": "two spellings of one key agree",
    "one-kv-head": "keys and values are one head",
    "one-shared-expert": "a layer has one shared expert",
    "scoring": "router scores are sqrt(softplus)",
    "normalised-weights": "routing weights are renormalised",
    "weight-blocks": "widths of block-scaled matrices are multiples of 128",
    "kv-groups": "lanes that do not rotate come in groups of 64",
    "rope-lanes": "rotating lanes come in pairs",
    "output-groups": "heads divide into the output groups",
    "index-width": "the indexer's width is a power of two, in groups of 32, and holds the rotation",
    "ratio-count": "there is one compress ratio for each layer and each stage after the trunk",
    "ratio-class": "a compress ratio is 0, or 2 and more",
    "tail-ratio": "stages after the trunk do not compress",
    "hash-layers": "hash-routed layers are layers of the trunk",
    "active-experts": "a token's experts are among the routed ones",
    "index-topk": "the indexer picks at least one block",
    "window-size": "the window holds at least one position",
    "dspark-keys": "the four dspark keys come together",
    "dspark-targets": "tapped layers are distinct layers of the trunk in ascending order",
    "dspark-noise-token": "the noise token is in the vocabulary",
    "positions": "positions remain after the drafter's rows",
    "block-format": "matrices are E4M3 in 128x128 blocks with power-of-two scales",
    # Files.
    "config-file": "config.json is there and is a JSON object",
    "index-file": "model.safetensors.index.json maps tensor names to files of its folder",
    "no-tensors": "there are safetensors files",
    "missing-shard": "every file that the index names is there",
    "truncated-shard": "a file is as long as its header says",
    "shard-length": "a file ends with its last tensor",
    "shard-header": "a file begins with a safetensors header",
    "unknown-dtype": "a stored type is known",
    "tensor-length": "a tensor's bytes are its shape times its type",
    "tensor-overlap": "tensors follow each other without gaps",
    "duplicate-tensor": "a tensor is stored once",
    "index-disagrees": "the index and the headers say the same",
    "headers-only": "data is read from files that hold it",
    "unknown-tensor": "a tensor that is asked for is stored",
    # Census.
    "lineage": "a checkpoint has one kind of tail, and the configuration says which",
    "stage-count": "as many stages are stored as the configuration has",
    "missing-tensor": "every expected tensor is stored",
    "extra-tensor": "no other tensor is stored",
    "wrong-dtype": "a tensor has its expected type",
    "wrong-shape": "a tensor has its expected shape",
    # Tokenizer.
    "tokenizer-file": "tokenizer_config.json is a JSON object",
    "special-tokens": "special tokens are tokens of their own behind the bytes",
    "text-bytes": "text is characters, and their bytes are tokens",
    # Values.
    "e8m0-nan": "no scale byte is 0xFF",
    "e4m3-nan": "no E4M3 code is NaN",
    "negative-scale": "no block scale is negative",
    "finite-weights": "no weight is NaN or infinite",
    "scale-2": "a second scale is finite and positive",
    "scale-2-power": "a second scale is a power of two, so that weights are exact in bf16",
    "expert-ids": "a hash table holds ids of experts",
    "distinct-experts": "a hash table names an expert once in a row",
    # Making checkpoints.
    "mint-size": "a checkpoint can be made in the asked size",
    "mint-target": "a new checkpoint overwrites nothing and has room",
}
"""Every rule and what it demands. A message of a refusal begins with the name of its rule."""


def refuse(rule: str, found: str, where: object, advice: str) -> Refusal:
    """The refusal that names the broken rule, what was found, where, and what to do next."""
    return Refusal(f"rule {rule}: {RULES[rule]}\n  found: {found}\n  in {where}\n  {advice}")
