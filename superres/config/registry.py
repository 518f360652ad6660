"""Implementations of a setting by name, built in or from installed packages."""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections import UserDict
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from superres.errors import ConfigError, plain, shown

LOG = logging.getLogger(__name__)
T = TypeVar("T")
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_-]+")

_installed = functools.cache(lambda: entry_points())
"""The entry points of all installed packages, whose lists are read once for all groups."""


@functools.cache
def plugins_of(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group that installed packages have, by name; the first of a name
    counts.

    Nothing of these packages is imported. Entry points without a plain name are left out; all of
    them, with a warning, if the list of a package is damaged.
    """
    try:
        found = [(entry.name, _package(entry), entry) for entry in _installed().select(group=group)]
    # whatever a damaged package causes: no other command may depend on it
    except Exception as error:
        LOG.warning("plug-ins are not available: the list of an installed package is damaged (%s); "
                    "fix or uninstall it",
                    plain(str(error)))
        return {}
    return {name: entry for name, _, entry in sorted(found, key=lambda one: one[:2], reverse=True)
            if PLUGIN_NAME.fullmatch(name)}


def _package(entry: EntryPoint) -> str:
    return plain(str(entry.dist.name if entry.dist is not None else entry.value))


def with_plugins(names: list[str], group: str) -> list[str]:
    """Return `names` and those of `plugins_of` a group."""
    return list(dict.fromkeys([*names, *sorted(plugins_of(group))]))


class Registry(UserDict[str, T]):
    """Implementations of a setting by name.

    The settings class reads only the list `names`, so it does not import the implementations.
    Adding or removing an implementation also changes this list. `names` are those of the `built_in`
    members and names that `with_plugins` adds from the entry points of `group`, if given. A plug-in
    is imported when its name is looked up, which raises a ConfigError if that fails or it does not
    fit; `data` has the implementations that are imported. Others than the first `members` are
    classes derived from the class `base` that superres exports, which is imported to check them;
    messages call them `label`.
    """

    def __init__(
        self, names: list[str], members: dict[str, T], group: str | None = None,
        base: str = "", label: str = "",
    ) -> None:
        self.plugins = {} if group is None else dict(plugins_of(group))
        self.shadowing = {name: self.plugins.pop(name) for name in members if name in self.plugins}
        if (list(members) != names[:len(members)] or self.plugins.keys()
            != set(names[len(members):])):
            raise ValueError(f"implementations {', '.join(members)} of the names "
                             f"{', '.join(names)}; make them agree")
        self.names, self.base, self.label, self.built_in = names, base, label, frozenset(members)
        super().__init__(members)

    def check(self, name: str, member: object) -> None:
        """Raise ConfigError unless `member` may be an implementation."""
        base: type = getattr(importlib.import_module("superres"), self.base)
        if not (isinstance(member, type) and issubclass(member, base)):
            raise ConfigError(f"{name} must be a class derived from superres.{self.base}, not "
                              f"{shown(member)}")

    def __getitem__(self, name: str) -> T:
        if name in self.shadowing:
            LOG.warning("%s is the built-in %s; the plug-in of that name in the package %s is not "
                        "used", name, self.label, _package(self.shadowing.pop(name)))
        if name not in self.data and name in self.plugins:
            entry = self.plugins[name]
            try:
                member = entry.load()
                self.check(name, member)
            except (Exception, SystemExit) as error:  # whatever a package does when it is imported
                raise ConfigError(f"{name} of the package {_package(entry)} cannot be used "
                                  f"({type(error).__name__}: {plain(str(error))}); fix or "
                                  "uninstall that package, or choose another name"
                                  ) from error
            self.data[name] = member
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.data, *self.plugins]))

    def __len__(self) -> int:
        return len({*self.data, *self.plugins})

    def __setitem__(self, name: str, member: T) -> None:
        super().__setitem__(name, member)
        if name not in self.names:
            self.names.append(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.names.remove(name)
