"""The simulations of `scripts/simulate_votes.py`, one module each."""
