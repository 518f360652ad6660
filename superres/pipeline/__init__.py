"""The only join of network, decoder and task: load a checkpoint once, then call it."""
