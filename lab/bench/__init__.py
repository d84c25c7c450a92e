"""Measurement of kernels, layers, steps and rounds by one set of rules.

Weights come from memory: launches rotate over more copies than the L2 cache holds. Device events
bracket replays of a graph of many launches. The roof of reading is measured in the same run. What
fails its contract gets no verdict on its time. On the host backend the same code runs, and its
seconds are those of a CPU: they say nothing about a GPU and are told against no roof.
"""
