"""Trains the small V4 of `examples/`: a differentiable model, its corpus, and its export.

    python -m tools.train run --out build/small --minutes 25

Needs the extra `train` (torch). Weights are a plain dictionary from published names to tensors,
and every rule of the model is a function of configuration, weights and inputs, so that the same
code trains in bf16, evaluates in float32 and is held against the float64 oracle.
"""
