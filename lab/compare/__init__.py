"""Turns two arrays into metrics, patterns and a verdict."""
