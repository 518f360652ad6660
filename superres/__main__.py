"""`python -m superres`: the command, for launchers of several processes such as torchrun."""

from superres.cli.main import main

main()
