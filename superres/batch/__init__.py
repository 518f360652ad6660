"""Many files: inputs, plan, run, manifest, and outputs that appear whole or not at all."""
