"""Score a checkpoint (`images --data PATH`): `superres evaluate` by file name."""

import sys

from superres.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["evaluate", *sys.argv[1:]]))
