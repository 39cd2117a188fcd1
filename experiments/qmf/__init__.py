"""Experiments with quantile matrix factorization."""
