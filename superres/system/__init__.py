"""The machine and its surroundings: cores, files, the terminal, the hub."""
