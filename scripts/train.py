"""`superres train` by file name, so that `accelerate launch scripts/train.py` and `torchrun scripts/train.py` work."""

import sys

from superres.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]]))
