"""Turns records into pages for people."""
