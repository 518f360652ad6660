"""Export a survey's votes (`STUDY --format csv|jsonl|parquet --output FILE`): `superres survey export` by file name."""

import sys

from superres.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["survey", "export", *sys.argv[1:]]))
