"""The tests: a folder per room of the package, proofs/ of what may never change, and journeys/
in a browser."""
