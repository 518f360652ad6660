"""The build hook of hatchling: puts the compiled native variants into the wheel of a platform.

`make wheels` names the platform in SUPERRES_WHEEL_PLATFORM. Without it, as in `pip install .`, the
wheel is pure, and the first use compiles the variant of its processor.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build_native import build

PLATFORM = "SUPERRES_WHEEL_PLATFORM"


class NativeLibraries(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the libraries before a wheel is made."""

    def dependencies(self) -> list[str]:
        """Return the packages that the build needs besides hatchling."""
        return ["ziglang>=0.15"] if os.environ.get(PLATFORM) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform in the wheel's tag."""
        platform = os.environ.get(PLATFORM)
        if not platform or version == "editable":
            return
        for path in build(platform, Path(self.root) / "build" / platform):
            build_data["force_include"][str(path)] = f"superres/native/lib/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
