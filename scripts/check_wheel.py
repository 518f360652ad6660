"""Check a wheel of this system's platform in an empty environment, outside the repository, without
a compiler and without torch.

    make wheels PLATFORMS=linux_x86_64
    python scripts/check_wheel.py dist/superres-0.1.0-py3-none-linux_x86_64.whl

The wheel must have every variant of its machine and of WebAssembly, run README's commands on a
face, a photo and a sentence, upscale the face with the engine `native` to the pixels that this
repository gives, write the page for browsers with its own modules, and serve the web demo with its
examples. superres is the wheel's. Its dependencies, those of the extras ui and text included, are
those of the Python that runs this script, and no other package of it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import urllib.request
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from packaging.requirements import Requirement
from PIL import Image, ImageChops

from build_native import PLATFORMS, load_variants

SERVE_SECONDS = 300.0
"""Longest wait for the web demo."""
EXTRAS = "ui", "text"
ABSENT = "torch", "torchvision", "triton", "psutil", "ziglang"
"""Packages that the environment must not have."""
FACE = Path(__file__).parent / "faces" / "face-1.png"
PHOTO = Path(__file__).parent / "photos" / "Grace-Hopper.jpg"


def check_contents(wheel: Path) -> None:
    """Exit unless the wheel has the probe, every variant of its machine and of WebAssembly, and the
    weights."""
    machine, _ = PLATFORMS[wheel.stem.partition("py3-none-")[2]]
    table = load_variants()
    libraries = {"probe",
                 *(variant.name for variant in (*table["for_machine"](machine), *table["WASM"]))}
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {Path(name).stem for name in names if "/native/lib/" in name}
    if found != libraries:
        raise SystemExit(f"{wheel.name} has the libraries {sorted(found)}, not {sorted(libraries)}")
    if not any(name.startswith("superres/_checkpoints/celeba-8to32/") for name in names):
        raise SystemExit(f"{wheel.name} lacks the bundled checkpoint")


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel in `folder`, and return its folder of commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    commands = folder / ("Scripts" if sys.platform == "win32" else "bin")
    words = "--python", folder, "install", "--quiet", "--no-deps", wheel.resolve()
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder),
                                                        "platbase": str(folder)}))
    [own] = packages.glob("superres-*.dist-info")
    for needed in dependencies(Distribution.at(own), EXTRAS):
        names = {path.parts[0] for path in needed.files or ()} - {"..", "__pycache__"}
        for name in names:  # packages of one namespace share a folder
            if not (packages / name).exists():
                (packages / name).symlink_to(needed.locate_file(name))
    lacking = f"import importlib.util as u; print(*filter(u.find_spec, {ABSENT}))"
    found = subprocess.run([commands / "python", "-c", lacking], check=True, capture_output=True,
                           text=True).stdout.strip()
    if found:
        raise SystemExit(f"{wheel.name} with its extras {', '.join(EXTRAS)} brings {found}")
    return commands


def dependencies(wanted: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return the distributions that one needs with its extras, and those that these need."""
    found: dict[str, Distribution] = {}
    waiting = [(wanted, extra) for extra in ("", *extras)]
    done = set()
    while waiting:
        needing, extra = waiting.pop()
        for requirement in map(Requirement, needing.requires or ()):
            marked = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            for further in ("", *requirement.extras) if marked else ():
                if (requirement.name, further) not in done:
                    done.add((requirement.name, further))
                    found[requirement.name] = distribution(requirement.name)
                    waiting.append((found[requirement.name], further))
    return [*found.values()]


def upscale(words: list[str], folder: Path, environment: dict[str, str]) -> Image.Image:
    """Upscale the face with the engine `native`, which does not fall back to another, and return
    the picture."""
    subprocess.run([*words, "upscale", FACE.resolve(), "--engine", "native", "--output", folder],
                   cwd=folder.parent, env=environment, check=True)
    return Image.open(folder / FACE.name)


def run_readme(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Upscale a photo, finished and as a sheet, and translate a sentence, in an empty folder."""
    folder.mkdir()
    for line in (["upscale", PHOTO.resolve()], ["upscale", PHOTO.resolve(), "--sheet", "--finish",
                                                "mean"]):
        subprocess.run([*words, *line], cwd=folder, env=environment, check=True)
    if len([*folder.glob("Grace-Hopper*")]) != 2:
        raise SystemExit("a photo became no picture and sheet")
    sentence = subprocess.run([*words, "translate", "A man plays the guitar."], cwd=folder,
                              env=environment, check=True, capture_output=True, text=True).stdout
    if "Gitarre" not in sentence:
        raise SystemExit(f"the translation of a guitar is {sentence!r}")


def export(words: list[str], folder: Path, environment: dict[str, str], wheel: Path) -> None:
    """Write the page for browsers, whose modules must be those of the wheel."""
    subprocess.run([*words, "export", "web", folder], cwd=folder.parent, env=environment,
                   check=True)
    with ZipFile(wheel) as archive:
        for variant in load_variants()["WASM"]:
            own = archive.read(f"superres/native/lib/{variant.name}.wasm")
            if (folder / f"superres-{variant.name}.wasm").read_bytes() != own:
                raise SystemExit(f"the page has another {variant.name} than {wheel.name}")
    if not (folder / "element.js").is_file():
        raise SystemExit(f"{wheel.name} lacks the element for pages")


def serve(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start the web demo, and load its page, whose paint box must have the examples."""
    command = [*words, "app", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE,
                          text=True) as process:
        giving_up = threading.Timer(SERVE_SECONDS, process.kill)
        giving_up.start()
        try:
            if (found := re.search(r"open (\S+) ", process.stdout.readline() if process.stdout
                                   else "")) is None:
                raise SystemExit("the web demo does not start")
            with urllib.request.urlopen(found[1], timeout=60) as answer:  # noqa: S310 -- our own server
                if "Grace Hopper" not in answer.read().decode():
                    raise SystemExit("the page of the web demo has no examples")
        finally:
            giving_up.cancel()
            process.terminate()


def main() -> None:
    """Check, and print what is used."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    check_contents(wheel)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        commands = install(wheel, folder / "environment")
        # No other command can be found, and nothing compiled before.
        environment = {"PATH": str(commands), "HOME": scratch, "XDG_CACHE_HOME": f"{scratch}/cache"}
        words = [str(commands / "superres")]
        text = subprocess.run([*words, "info", "--json"], cwd=folder, env=environment, check=True,
                              capture_output=True)
        found = json.loads(text.stdout)
        print(text.stdout.decode())
        if found["compiler"] != "none" or str(commands.parent) not in found.get("library", ""):
            raise SystemExit("the environment is not empty: it must have no compiler, and load the "
                             "wheel's library")
        installed = upscale(words, folder / "installed", environment)
        own = [sys.executable, "-c", "from superres.cli.main import main; main()"]
        here = upscale(own, folder / "here", dict(os.environ))
        if ImageChops.difference(installed, here).getbbox():
            raise SystemExit("the wheel gives other pixels than this repository")
        run_readme(words, folder / "readme", environment)
        export(words, folder / "page", environment, wheel)
        serve(words, folder, environment)
        print(f"{wheel.name}: {installed.size[0]}x{installed.size[1]} pixels, those that this "
              "repository gives")


if __name__ == "__main__":
    main()
