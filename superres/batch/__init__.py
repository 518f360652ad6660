"""Processing of many files: inputs, plan, run, manifest, and atomic outputs."""
