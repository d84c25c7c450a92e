"""Models that a drafter can draft for, behind one protocol."""
