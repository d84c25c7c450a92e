"""Finding the line: prompt, watch, probes, bisection, and cases made small."""
