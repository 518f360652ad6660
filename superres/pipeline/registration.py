"""Own proposers, criteria and engines, which need no change of the package.

They are used like the built-in ones, by their names, in Python and in the commands of this process.
A package makes its own known to all processes, the command line and the web demo, by an entry point
in the group "superres.proposers", "superres.criteria" or "superres.engines", whose name is that of
the setting and whose object is the class. The package is imported when that name is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from superres.config import PLUGIN_NAME, Registry, require
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer
from superres.errors import shown
from superres.pipeline.choose import ENGINES

if TYPE_CHECKING:
    from superres.nn.torch_model import StepModel

KindT = TypeVar("KindT", bound=type)


def register_proposer(name: str) -> Callable[[type[Proposer]], type[Proposer]]:
    """Return a decorator that adds a class derived from `Proposer` as the proposer `name`.

    The class defines `propose`, which may be wrong: exact acceptance gives the verifier's own
    tokens for any proposals. A class of the same name that was registered before is replaced, so a
    notebook's cell can run again.

    Raises:
        ConfigError: the name is not of letters, digits, hyphens and underscores, or that of a
            built-in; or the class does not derive from `Proposer`.
    """
    return _registering(PROPOSERS, name)


def register_criterion(name: str) -> Callable[[type[Criterion]], type[Criterion]]:
    """Return a decorator that adds a class derived from `Criterion` as the acceptance criterion
    `name`.

    The class defines `accept`. Unless it is exact, outputs are not those of greedy decoding.

    Raises:
        ConfigError: as for `register_proposer`.
    """
    return _registering(CRITERIA, name)


def register_engine(name: str) -> Callable[[type[StepModel]], type[StepModel]]:
    """Return a decorator that adds a class derived from `StepModel` as the engine `name`.

    The class computes the decoding step: its method `session` returns a
    `superres.sessions.Session`.

    Raises:
        ConfigError: as for `register_proposer`.
    """
    return _registering(ENGINES, name)


def _registering(registry: Registry[Any], name: str) -> Callable[[KindT], KindT]:
    require(isinstance(name, str) and PLUGIN_NAME.fullmatch(name) is not None,
            f"a name has letters, digits, hyphens and underscores, unlike {shown(name)}")
    require(name not in registry.built_in, f"{name} is built in; choose another name")

    def register(kind: KindT) -> KindT:
        registry.check(name, kind)
        registry[name] = kind
        return kind

    return register
