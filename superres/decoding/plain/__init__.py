"""The iteration on torch: engines whose steps are tensors, and what an iteration consists of."""
