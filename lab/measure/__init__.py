"""Timing, clocks and roofs."""
