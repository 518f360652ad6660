"""Places: paths of this machine, and URLs of object stores and web servers.

A place is text. One with "://" is a URL (`cloud` extra); any other is a path. Nobody but the
openers at the end asks which: a place answers for itself. Credentials come from the ecosystem
(environment variables and profiles), so a URL with a password or a query is refused: it would be
recorded. A write is whole or absent.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from superres.errors import ConfigError, InvalidInputError, OutputError, SuperresError, plain
from superres.system import stores
from superres.system.output import scratch_folder
from superres.system.paths import FREE_BYTES, Found, Listed, Place, Wanted, count_literal
from superres.system.stores import (
    PACKAGES,
    READ_ONLY,
    EmptyError,
    host_of,
    limit,
    persistently,
    public_url,
    secret_of,
    too_large,
)

READ_AHEAD = 32  # files that are requested from a store before they are needed


class RemotePlace(Place):
    """A URL, of an object store or of a web server, which is only read."""

    renames = False
    ahead = READ_AHEAD

    @property
    def host(self) -> tuple[str, str]:
        return host_of(self.text)

    @property
    def public(self) -> str:
        return public_url(self.text)

    @property
    def full(self) -> str:
        return self.text.rstrip("/")

    @property
    def path(self) -> str:
        return self.text.partition("://")[2]

    @property
    def parent(self) -> Place:
        return self  # folders of a store need not be made

    def real(self, parents: dict[str, str] | None = None) -> str:
        return self.full

    def version(self) -> str | None:
        return None

    def has_changed(self, version: str | None) -> bool:
        return False

    def check(self, writing: bool = False) -> None:
        """Raise ConfigError for an unknown scheme or a missing host; OutputError with `writing`, if
        places of the scheme are only read."""
        scheme, host = self.host
        if scheme not in PACKAGES:
            raise ConfigError(f"{self.public} has the scheme {plain(scheme)}; superres reads "
                              f"{', '.join(PACKAGES)} and paths of this machine")
        if not host:
            raise ConfigError(f"{self.public} names no host or bucket; write {scheme}://NAME/...")
        if writing and scheme in READ_ONLY:
            raise OutputError(f"cannot write {self.public}: web servers are only read; choose "
                              "another --output")

    def _opened(self, writing: bool = False) -> tuple[Any, str]:
        """Return the file system, and the path there."""
        self.check(writing)
        system = stores.system_of(self.host[0], os.getpid())
        return system, system._strip_protocol(self.text)

    def read(self, most: int) -> bytes:
        system, path = self._opened()

        def request() -> bytes:
            if self.host[0] in READ_ONLY:
                buffer = io.BytesIO()
                system.get_file(path, buffer, callback=limit(self.text, most))
                return buffer.getvalue()
            content: bytes = system.cat_file(path, start=0, end=most + 1)
            return content

        try:
            content = persistently(request, self.text, "read")
        except EmptyError:
            return b""
        if len(content) > most:
            raise too_large(self.text, most)
        return content

    def source(self, most: int) -> str | IO[bytes]:
        if not (content := self.read(most)):
            raise InvalidInputError(f"{self.public} is empty (0 bytes); provide an image file")
        return io.BytesIO(content)

    @contextmanager
    def fetched(self) -> Iterator[str]:
        system, path = self._opened()
        with scratch_folder() as folder:
            room = max(0, shutil.disk_usage(folder).free - FREE_BYTES)
            copy = os.path.join(folder, "content")
            persistently(lambda: system.get_file(path, copy, callback=limit(self.text, room)),
                         self.text, "read")
            yield copy

    def write(self, data: bytes) -> None:
        system, path = self._opened(writing=True)
        persistently(lambda: system.pipe_file(path, data), self.text, "write")

    @contextmanager
    def written(self) -> Iterator[IO[bytes]]:
        with scratch_folder() as folder:
            path = os.path.join(folder, "content")
            with open(path, "wb") as file:
                yield file
            try:
                self.take(path)
            except SuperresError as error:
                raise type(error)(f"{error}; what was written is in {self.keep(path)}") from error

    def keep(self, path: str) -> str:
        suffix = os.path.splitext(self.text)[1]
        descriptor, kept = tempfile.mkstemp(prefix="superres-", suffix=suffix)
        os.close(descriptor)
        shutil.move(path, kept)
        return kept

    def take(self, path: str) -> None:
        system, target = self._opened(writing=True)
        persistently(lambda: system.put_file(path, target), self.text, "write")
        os.unlink(path)

    def remove(self) -> None:
        system, path = self._opened(writing=True)

        def delete() -> None:
            with suppress(FileNotFoundError):
                system.rm_file(path)

        persistently(delete, self.text, "remove")

    def _exists(self) -> bool:
        system, path = self._opened()
        return bool(persistently(lambda: system.exists(path), self.text, "read"))

    def is_file(self) -> bool | None:
        return not self.text.endswith("/")

    def is_folder(self, suffixes: tuple[str, ...] = ()) -> bool:
        if self.host[0] in READ_ONLY and self.path.partition("/")[2].rpartition("/")[2]:
            return False
        has_none = bool(suffixes) and not self.text.lower().endswith(suffixes)
        return self.text.endswith("/") or has_none

    def check_folder(self) -> None:
        self.check(writing=True)

    def prepare_folder(self) -> None:
        self.check(writing=True)

    def files(self, start: str = "", recursive: bool = False) -> Iterator[Listed]:
        return self._listed(start, recursive)

    def _listed(self, start: str = "", recursive: bool = False,
                folders: bool = False) -> Iterator[Listed]:
        """Yield files, and with `folders` the names of sub-folders, which end with a slash."""
        if self.host[0] in READ_ONLY:
            raise InvalidInputError(f"{self.public} cannot be listed, since web servers have no "
                                    "folders; name files, or give a --list of them")
        system, path = RemotePlace(self.full)._opened()
        find = stores.s3_files if self.host[0] == "s3" else stores.walked_files
        return find(system, path, self.text, start, recursive, folders)

    def pictures(self, wanted: Wanted, recursive: bool) -> Iterator[Found]:
        for listed in self._listed(recursive=recursive, folders=not recursive):
            if listed.name.endswith("/"):
                wanted.tally.left_out["sub-folder"] += 1
                wanted.tally.hint = "; --recursive includes sub-folders"
            else:
                yield from self._found(listed, wanted)

    def pattern(self) -> tuple[Place, str]:
        scheme, parts = self.host[0], self.path.split("/")
        fixed = len(parts) if scheme in READ_ONLY else count_literal(
            parts, lambda names: RemotePlace(f"{scheme}://{'/'.join(names)}")._exists())
        if fixed == len(parts):
            return self, ""
        return RemotePlace(f"{scheme}://{'/'.join(parts[:fixed])}"), "/".join(parts[fixed:])

    def matching(self, wanted: Wanted, pattern: str) -> Iterator[Found]:
        from fsspec.utils import glob_translate

        matches = re.compile(glob_translate(pattern))
        start = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        for listed in self._listed(start, recursive="/" in pattern or "**" in pattern):
            if matches.match(listed.name):
                yield from self._found(listed, wanted)

    def _found(self, listed: Listed, wanted: Wanted) -> Iterator[Found]:
        """Yield a file of this folder unless it is left out."""
        place, tally = RemotePlace(f"{self.full}/{listed.name}"), wanted.tally
        if any(place.text.startswith(f"{folder}/") for folder in wanted.entered):
            tally.left_out["in the folder of the results"] += 1
        elif tally.takes(listed.name, wanted.suffixes):
            tally.used += 1
            yield Found(place, listed.name, listed.version)


def open_place(text: str | os.PathLike[str], writing: bool = False) -> Place:
    """Return the place that a user gave, which exists or not.

    Raises ConfigError for a URL without a known scheme, without a host or with a secret;
    OutputError with `writing`, if places of its scheme are only read.
    """
    place = known_place(text)
    if isinstance(place, RemotePlace):
        place.check(writing)
        if "@" in place.host[1] or secret_of(place.text):
            raise ConfigError(f"{place.public} has a password, a query or a fragment, which would "
                              "be recorded; give credentials by the environment or a profile of "
                              "the store")
    return place


def known_place(text: str | os.PathLike[str]) -> Place:
    """Return the place that a listing or a manifest names; the keys of a store may have any
    character."""
    return RemotePlace(str(text)) if "://" in str(text) else Place(str(text))


def public(text: str) -> str:
    """Return the text of a place as messages show it."""
    return known_place(text).public
