"""Speculative decoding as pure host logic: what to draft, verify, accept, commit and emit."""
