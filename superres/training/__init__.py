"""Training in stages: the base network, its prediction heads, fine-tuning and distillation."""
