"""Scores, comparisons, tables of the papers and benchmarks."""
