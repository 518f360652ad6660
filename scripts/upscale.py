"""Upscale images and folders of images: `superres upscale` by file name."""

import sys

from superres.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["upscale", *sys.argv[1:]]))
