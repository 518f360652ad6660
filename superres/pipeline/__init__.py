"""Pipelines combine network, decoder and task: load a checkpoint once, then call it."""
