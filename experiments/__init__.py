"""Experiments on real data: one command each, results in a RESULTS.md beside it."""
