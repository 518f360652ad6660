"""The web demo: `python app.py`, `make app` and `superres app` are the same command."""

import sys

from superres.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "app")
    main()
