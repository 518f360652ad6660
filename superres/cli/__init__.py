"""The command line `superres`: one module per family of commands."""
