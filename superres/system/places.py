"""Read and write places: paths of this machine, and URLs of object stores and web servers through
fsspec.

A place is text. One with "://" is a URL (`cloud` extra); any other is a path. Credentials come from
the ecosystem (environment variables and profiles), so a URL with a password or a query is refused:
it would be recorded. Requests that fail for a passing reason are repeated; a write is whole or
absent. Redirects to another host are not followed.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from superres.errors import (
    ConfigError,
    InvalidInputError,
    OutputError,
    PlaceError,
    first_line,
    plain,
)
from superres.system.json_files import read_file
from superres.system.output import scratch_file, scratch_folder, write_atomically

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "hf": "huggingface_hub", "http": "aiohttp",
            "https": "aiohttp"}
"""The package that reads URLs of a scheme."""
READ_ONLY = ("http", "https")
# attempts of a request, within about 15 seconds, besides the attempts of the store's own library
ATTEMPTS = 7
FIRST_WAIT = 0.2  # seconds before the second attempt; each further wait is twice as long
FREE_BYTES = 500_000_000  # bytes of the disc that a fetched file leaves free

T = TypeVar("T")


class Listed(NamedTuple):
    """A file of a folder: its name relative to it, its bytes, and text that changes with its
    content, if known."""

    name: str
    size: int = 0
    version: str | None = None


def version_of(path: str) -> str | None:
    """Return text that changes when a file of this machine is changed: its size and time; None if
    there is no file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a NUL character in the name
        return None
    return f"{found.st_size}-{found.st_mtime_ns}"


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether a place is a URL rather than a path of this machine."""
    return "://" in str(place)


def check_url(url: str, writing: bool = False) -> None:
    """Raise ConfigError unless `url`, as a user gave it, has a known scheme, a host or bucket, and
    maybe no secret.

    With `writing`, raise OutputError if places of its scheme are only read.
    """
    _check_place(url, writing)
    if "@" in host_of(url)[1] or _secret_of(url):
        raise ConfigError(f"{public(url)} has a password, a query or a fragment, which would be "
                          "recorded; give credentials by the environment or a profile of the store")


def _check_place(url: str, writing: bool) -> None:
    scheme, host = host_of(url)
    if scheme not in PACKAGES:
        raise ConfigError(f"{public(url)} has the scheme {plain(scheme)}; superres reads "
                          f"{', '.join(PACKAGES)} and paths of this machine")
    if not host:
        raise ConfigError(f"{public(url)} names no host or bucket; write {scheme}://NAME/...")
    if writing and scheme in READ_ONLY:
        raise OutputError(f"cannot write {public(url)}: web servers are only read; choose another "
                          "--output")


def host_of(url: str) -> tuple[str, str]:
    """Return the scheme and the host, or bucket, of a URL."""
    scheme, _, rest = url.partition("://")
    return scheme.lower(), re.split(r"[/?#]", rest, maxsplit=1)[0]


def public(place: str) -> str:
    """Return a place as messages show it: without password, query and fragment."""
    if not is_url(place):
        return place
    scheme, host = host_of(place)
    path = place.partition("://")[2].removesuffix(_secret_of(place)).partition("/")[2]
    return plain(f"{scheme}://{host.rpartition('@')[2]}/{path}")


def _secret_of(url: str) -> str:
    """Return the end of a URL that may hold a secret: query and fragment, or what looks like them
    in a store's key."""
    is_store = host_of(url)[0] in PACKAGES and host_of(url)[0] not in READ_ONLY
    found = re.search(r"[?#][\w.~-]+=.*" if is_store else r"[?#].*", url.partition("://")[2],
                      re.DOTALL)
    return found[0] if found else ""


def join(folder: str, name: str) -> str:
    """Return the place of `name` in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def read_place(place: str, most: int) -> bytes:
    """Return the content of at most `most` bytes of a place.

    Raises InvalidInputError if it cannot be read or is larger, and PlaceError if it cannot be read
    at present.
    """
    if not is_url(place):
        try:
            return read_file(Path(place), most)
        except OSError as error:
            raise InvalidInputError(f"cannot read {place}: {error.strerror}; check the "
                                    "path") from error
    system, path = _opened(place)

    def read() -> bytes:
        if host_of(place)[0] in READ_ONLY:
            buffer = io.BytesIO()
            system.get_file(path, buffer, callback=_limit(place, most))
            return buffer.getvalue()
        content: bytes = system.cat_file(path, start=0, end=most + 1)
        return content

    try:
        content = _persistently(read, place, "read")
    except _EmptyError:
        return b""
    if len(content) > most:
        raise _too_large(place, most)
    return content


@contextmanager
def fetched(place: str) -> Iterator[str]:
    """Yield the path of a copy of a URL's content, which is removed afterwards, or the path itself.

    Raises as `read_place`; a content that leaves less than `FREE_BYTES` of the disc free is too
    large.
    """
    if not is_url(place):
        yield place
        return
    system, path = _opened(place)
    with scratch_folder() as folder:
        room = max(0, shutil.disk_usage(folder).free - FREE_BYTES)
        copy = os.path.join(folder, "content")
        _persistently(lambda: system.get_file(path, copy, callback=_limit(place, room)), place,
                      "read")
        yield copy


def write_place(place: str, data: bytes) -> None:
    """Write `data`, whole or not at all.

    Raises OutputError if it cannot be written, and PlaceError if it cannot be written at present.
    """
    if is_url(place):
        system, path = _opened(place, writing=True)
        _persistently(lambda: system.pipe_file(path, data), place, "write")
        return
    try:
        os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
        write_atomically(Path(place), data)
    except OSError as error:
        raise OutputError(f"cannot write {place}: {error.strerror}; choose another "
                          "--output") from error


def move_to(path: str, place: str) -> None:
    """Move a file of this machine to a place, whole or not at all; raises as `write_place`."""
    if not is_url(place):
        try:
            os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
            with open(path, "rb") as content:
                os.fsync(content.fileno())
                if os.stat(path).st_dev == os.stat(os.path.dirname(os.path.abspath(place))).st_dev:
                    os.replace(path, place)
                    return
                with scratch_file(Path(place).parent, Path(place)) as file:
                    shutil.copyfileobj(content, file)
                    file.flush()
                    os.fsync(file.fileno())
            os.unlink(path)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror}; choose another "
                              "--output") from error
        return
    system, target = _opened(place, writing=True)
    _persistently(lambda: system.put_file(path, target), place, "write")
    os.unlink(path)


def remove(place: str) -> None:
    """Remove the file at a place, if there is one."""
    if not is_url(place):
        Path(place).unlink(missing_ok=True)
        return
    system, path = _opened(place, writing=True)

    def delete() -> None:
        with suppress(FileNotFoundError):
            system.rm_file(path)

    _persistently(delete, place, "remove")


def exists(place: str) -> bool:
    """Return whether a place is a file or a folder; raises as `read_place`."""
    if not is_url(place):
        return os.path.lexists(place)
    system, path = _opened(place)
    return bool(_persistently(lambda: system.exists(path), place, "read"))


def files_in(folder: str, start: str = "", recursive: bool = False,
             folders: bool = False) -> Iterator[Listed]:
    """Yield the files of a folder whose relative names begin with `start`, in the order of their
    names.

    With `folders`, and without `recursive`, the names of its sub-folders, which end with a slash,
    are yielded, too. A store's answers are read page by page, so that memory does not grow with
    their number (for other stores than S3, with that of a folder). A folder that does not exist has
    no files. Raises as `read_place`.
    """
    if not is_url(folder):
        yield from _local_files(folder, start, recursive, folders)
        return
    system, path = _opened(folder.rstrip("/"))
    if host_of(folder)[0] in READ_ONLY:
        raise InvalidInputError(f"{public(folder)} cannot be listed, since web servers have no "
                                "folders; name files, or give a --list of them")
    find = _s3_files if host_of(folder)[0] == "s3" else _walked_files
    yield from find(system, path, folder, start, recursive, folders)


def _local_files(folder: str, start: str, recursive: bool, folders: bool) -> Iterator[Listed]:
    for parent, below, names in os.walk(folder):
        here = os.path.relpath(parent, folder)
        for name in sorted([*names, *(f"{one}/" for one in below if folders and not recursive)]):
            relative = name if here == "." else f"{here}/{name}"
            if relative.startswith(start):
                version = version_of(os.path.join(parent, name))
                yield Listed(relative, int((version or "0-").partition("-")[0]), version)
        if not recursive:
            return
        below.sort()


def _s3_files(
    system: Any, path: str, folder: str, start: str, recursive: bool, folders: bool,  # noqa: ANN401
) -> Iterator[Listed]:
    bucket, _, key = path.partition("/")
    root = f"{key}/" if key else ""
    more = {} if recursive else {"Delimiter": "/"}
    request = {"Bucket": bucket, "Prefix": root + start, **more}
    while True:
        page = _persistently(lambda: system.call_s3("list_objects_v2", **request), folder, "list")
        for found in page.get("Contents", ()):
            if found["Key"] != root and not found["Key"].endswith("/"):
                size = found.get("Size", 0)
                yield Listed(found["Key"][len(root):], size, f"{size}-{found.get('ETag', '')}")
        for found in page.get("CommonPrefixes", ()) if folders else ():
            yield Listed(found["Prefix"][len(root):])
        if not page.get("IsTruncated"):
            return
        request["ContinuationToken"] = page["NextContinuationToken"]


def _walked_files(
    system: Any, path: str, folder: str, start: str, recursive: bool, folders: bool,  # noqa: ANN401
) -> Iterator[Listed]:
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            found = _persistently(lambda: system.ls(here, detail=True), folder, "list")  # noqa: B023
        except InvalidInputError:
            if here == path and not _persistently(lambda: system.exists(path), folder, "list"):
                return
            raise
        found.sort(key=lambda entry: entry["name"])
        below = [entry["name"] for entry in found
                 if entry["type"] == "directory" and entry["name"].strip("/") != here.strip("/")]
        for entry in found:
            relative = entry["name"][len(path):].strip("/")
            if entry["type"] == "file" and relative and relative.startswith(start):
                size = int(entry.get("size") or 0)
                names = ("etag", "ETag", "md5Hash", "mtime", "created")  # each store has its own
                changed = next((entry[name] for name in names if entry.get(name)), "")
                yield Listed(relative, size, f"{size}-{changed}")
        if recursive:
            waiting += reversed(below)
        elif folders:
            yield from (Listed(f"{name[len(path):].strip('/')}/") for name in below)


def _opened(url: str, writing: bool = False) -> tuple[Any, str]:
    """Return the file system of a URL, and its path there. The keys that a store lists may have any
    character."""
    _check_place(url, writing)
    system = _system(host_of(url)[0], os.getpid())
    return system, system._strip_protocol(url)


@functools.cache
def _system(scheme: str, process: int) -> Any:  # noqa: ANN401 -- of fsspec; each process has its own connections
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        __import__(PACKAGES[scheme])
        import fsspec

        if scheme == "s3":
            options["config_kwargs"] = {"retries": {"mode": "standard", "max_attempts": 3},
                                        "connect_timeout": 10, "read_timeout": 60,
                                        "http_session_cls": _s3_session()}
        elif scheme == "gs":
            options["session_kwargs"] = {"trace_configs": [_same_host_only()]}
        elif scheme in READ_ONLY:
            options["client_kwargs"] = {"trace_configs": [_same_host_only()]}
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise ConfigError(f"places of {scheme}:// need the cloud extra; pip install "
                          "'superres[cloud]'") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot open places of {scheme}:// ({plain(first_line(error))}); check "
                          "the store's credentials") from error


def _same_host_only() -> Any:  # noqa: ANN401 -- of aiohttp
    """Return hooks for aiohttp that refuse a redirect to another scheme, host or port."""
    import aiohttp

    async def refuse(session: object, context: object, redirect: Any) -> None:  # noqa: ANN401
        target = redirect.url.join(type(redirect.url)(redirect.response.headers.get("Location",
                                                                                    "")))
        if target.origin() != redirect.url.origin():
            raise InvalidInputError(f"{public(str(redirect.url))} redirects to "
                                    f"{public(str(target.origin()))}, which was not named; give "
                                    "the address that it redirects to")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


def _s3_session() -> Any:  # noqa: ANN401 -- of aiobotocore
    """Return the class of the connections to S3; aiobotocore's own would follow any redirect, with
    its signature."""
    from aiobotocore.httpsession import AIOHTTPSession

    class Session(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
        async def _get_session(self, proxy_url: object) -> SimpleNamespace:
            session = await super()._get_session(proxy_url)

            async def request(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 -- of aiohttp
                response = await session.request(*arguments, allow_redirects=False, **options)
                # botocore itself follows Amazon's redirects, to the region of a bucket; others
                # become refusals.
                if response.status in (301, 302, 303, 307, 308) and not (
                        str(response.url.host).endswith(".amazonaws.com")):
                    response.status = 403
                return response

            return SimpleNamespace(request=request)

    return Session


class _EmptyError(Exception):
    """A store has refused a range of a file without content."""


def _persistently(action: Callable[[], T], place: str, verb: str) -> T:
    """Return the result of `action`, repeated while it fails for a passing reason."""
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except Exception as error:
            problem = _explained(error, place, verb)
            if not isinstance(problem, PlaceError) or attempt == ATTEMPTS - 1:
                raise problem from error
        time.sleep(FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 -- spreads requests over time
    raise AssertionError("the last attempt raises")


def _explained(error: Exception, place: str, verb: str) -> Exception:
    """Return the error to raise: a PlaceError if the reason may pass."""
    lasting = InvalidInputError if verb in ("read", "list") else OutputError
    reason = plain(first_line(error))
    status = getattr(error, "status", None)
    cause: BaseException | None = error
    while cause is not None:  # a library may wrap an error of this module
        if isinstance(cause, (InvalidInputError, ConfigError, OutputError)):
            return cause
        cause = cause.__cause__ or cause.__context__
    if verb == "read" and "range" in reason.lower() and isinstance(error,
                                                                   OSError) and not isinstance(
                                                                       error, FileNotFoundError):
        return _EmptyError()
    if isinstance(error, FileNotFoundError):
        return lasting(f"{public(place)} does not exist; check the URL")
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ in (
            "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"):
        return lasting(f"cannot {verb} {public(place)}: no permission ({reason}); check the "
                       "store's credentials")
    if isinstance(error, OSError) and error.errno == getattr(errno, "EREMCHG", -1):
        return lasting(f"cannot {verb} {public(place)}: the store sends to another address, which "
                       "was not named; set that as the store's endpoint")
    if isinstance(error, (TypeError, AttributeError, KeyError, AssertionError)) or (
            isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)):
        return lasting(f"cannot {verb} {public(place)}: {reason or type(error).__name__}; check "
                       "the URL")
    return PlaceError(f"cannot {verb} {public(place)} at present "
                      f"({reason or type(error).__name__})")


def _too_large(place: str, most: int) -> InvalidInputError:
    return InvalidInputError(f"{public(place)} is over {most // 1_000_000} MB; reduce it first")


def _limit(place: str, most: int) -> Any:  # noqa: ANN401 -- of fsspec
    """Return a callback of a download that refuses more than `most` bytes."""
    from fsspec.callbacks import Callback

    class Limit(Callback):  # type: ignore[misc]  # fsspec has no types
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            if self.value > most:
                raise _too_large(place, most)

    return Limit()
