"""Pairwise preference survey: people see two pictures for the same input and say which was more likely a photograph."""
