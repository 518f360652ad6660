"""Decoding on a GPU: one launch of one Triton kernel decodes a batch."""
