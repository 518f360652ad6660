"""The simulations of `scripts/check/simulate_votes.py`, one module each."""
