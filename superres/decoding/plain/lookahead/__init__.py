"""Lookahead decoding (Fu et al. 2024) on torch."""
