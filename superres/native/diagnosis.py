"""What a bug report needs to know: machine, versions, and which native library is used and why."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

from superres.errors import ConfigError
from superres.native import build
from superres.native.engine import BY_PRECISION
from superres.native.variants import for_machine
from superres.system.machine import cpu_name, gpu_present, torch_version
from superres.system.output import cache_folder
from superres.system.threads import most_threads, usable_cores


def report() -> dict[str, Any]:
    """Describe this machine and what superres uses of it, as a JSON object; this may compile the
    native engine.

    `engine` is what the engine "auto" is on this processor, for the networks that it supports.
    """
    torch, native, cache = torch_version(), _native(), cache_folder()
    gpu = "none" if not gpu_present() else "yes" if torch is not None else (
        "yes, but unused: decoding on it needs torch: pip install 'superres[torch]'")
    return {
        "python": f"{platform.python_version()}, {platform.platform()}",
        "torch": torch or "none",
        "gpu": gpu,
        "processor": f"{cpu_name()}, {platform.machine()}, {usable_cores()} of {os.cpu_count()} "
        f"cores usable, by at most {most_threads()} threads",
        **native,
        "engine": (BY_PRECISION["int8"] if not native["native"].startswith("none")
                   else "none" if torch is None else "plain"),
        "compiler": _compiler(),
        "cache": f"{cache}, libraries: {len([*cache.glob('native-*')])}",
    }


def _native() -> dict[str, Any]:
    """Describe the variants, and load the one that is used."""
    try:
        features = build.processor()
    except build.NativeUnavailable as error:
        return {"native": f"none: {error}"}
    variants = []
    for variant in for_machine():
        missing = variant.missing(features)
        source = "in the package" if build.packaged_file(variant.name) else "compiled on first use"
        variants.append(f"{variant.name}: {source}, "
                        f"{'lacks ' + ' '.join(missing) if missing else 'runs here'}")
    found: dict[str, Any] = {"features": " ".join(sorted(features)), "variants": variants}
    try:
        chosen = build.chosen()
    except ConfigError as error:
        return {"native": f"none: {error}", **found}
    why = ("the fastest that runs here" if build.forced_variant() is None
           else f"{build.FORCED_VARIANT} names it")
    if chosen.refused:
        found["refused"] = list(chosen.refused)
        why = "a faster one is refused"
    return {"native": f"{chosen.variant.name}: {why}", **found, "library": str(chosen.path),
            "self-test": "passed"}


def _compiler() -> str:
    found = build.compiler()
    if found is None:
        return "none" if build.ziglang() is None else "the package ziglang"
    shown = subprocess.run([found, "--version"], capture_output=True, text=True,  # noqa: S603
                           check=False).stdout
    extra = os.environ.get(build.EXTRA_FLAGS)
    flags = f", {build.EXTRA_FLAGS}={extra}" if extra else ""
    return f"{found}: {(shown.splitlines() or ['no version'])[0]}{flags}"
