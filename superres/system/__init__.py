"""Access to the machine: cores, memory, files, the terminal and the Hugging Face hub."""
