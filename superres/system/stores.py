"""Connections to object stores and web servers through fsspec, and what their errors mean.

Requests that fail for a passing reason are repeated. Redirects to another host are not followed.
"""

from __future__ import annotations

import errno
import functools
import random
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

from superres.errors import (
    ConfigError,
    InvalidInputError,
    OutputError,
    PlaceError,
    first_line,
    plain,
)
from superres.system.paths import Listed

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "hf": "huggingface_hub", "http": "aiohttp",
            "https": "aiohttp"}
"""The package that reads URLs of a scheme."""
READ_ONLY = ("http", "https")
# attempts of a request, within about 15 seconds, besides the attempts of the store's own library
ATTEMPTS = 7
FIRST_WAIT = 0.2  # seconds before the second attempt; each further wait is twice as long

T = TypeVar("T")


def host_of(url: str) -> tuple[str, str]:
    """Return the scheme and the host, or bucket, of a URL."""
    scheme, _, rest = url.partition("://")
    return scheme.lower(), re.split(r"[/?#]", rest, maxsplit=1)[0]


def public_url(url: str) -> str:
    """Return a URL as messages show it: without password, query and fragment."""
    scheme, host = host_of(url)
    path = url.partition("://")[2].removesuffix(secret_of(url)).partition("/")[2]
    return plain(f"{scheme}://{host.rpartition('@')[2]}/{path}")


def secret_of(url: str) -> str:
    """Return the end of a URL that may hold a secret: query and fragment, or what looks like them
    in a store's key."""
    is_store = host_of(url)[0] in PACKAGES and host_of(url)[0] not in READ_ONLY
    found = re.search(r"[?#][\w.~-]+=.*" if is_store else r"[?#].*", url.partition("://")[2],
                      re.DOTALL)
    return found[0] if found else ""


def s3_files(
    system: Any, path: str, folder: str, start: str, recursive: bool, folders: bool,  # noqa: ANN401
) -> Iterator[Listed]:
    """Yield the files of the folder `path` of S3: see `superres.system.places.Place.files`."""
    bucket, _, key = path.partition("/")
    root = f"{key}/" if key else ""
    more = {} if recursive else {"Delimiter": "/"}
    request = {"Bucket": bucket, "Prefix": root + start, **more}
    while True:
        page = persistently(lambda: system.call_s3("list_objects_v2", **request), folder, "list")
        for found in page.get("Contents", ()):
            if found["Key"] != root and not found["Key"].endswith("/"):
                size = found.get("Size", 0)
                yield Listed(found["Key"][len(root):], size, f"{size}-{found.get('ETag', '')}")
        for found in page.get("CommonPrefixes", ()) if folders else ():
            yield Listed(found["Prefix"][len(root):])
        if not page.get("IsTruncated"):
            return
        request["ContinuationToken"] = page["NextContinuationToken"]


def walked_files(
    system: Any, path: str, folder: str, start: str, recursive: bool, folders: bool,  # noqa: ANN401
) -> Iterator[Listed]:
    """Yield the files of the folder `path` of any other store."""
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            found = persistently(lambda: system.ls(here, detail=True), folder, "list")  # noqa: B023
        except InvalidInputError:
            if here == path and not persistently(lambda: system.exists(path), folder, "list"):
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


@functools.cache
def system_of(scheme: str, process: int) -> Any:  # noqa: ANN401 -- of fsspec
    """Return the file system of a scheme; each process has its own connections."""
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
            raise InvalidInputError(f"{public_url(str(redirect.url))} redirects to "
                                    f"{public_url(str(target.origin()))}, which was not named; "
                                    "give the address that it redirects to")

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


class EmptyError(Exception):
    """A store has refused a range of a file without content."""


def persistently(action: Callable[[], T], place: str, verb: str) -> T:
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
        return EmptyError()
    if isinstance(error, FileNotFoundError):
        return lasting(f"{public_url(place)} does not exist; check the URL")
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ in (
            "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"):
        return lasting(f"cannot {verb} {public_url(place)}: no permission ({reason}); check the "
                       "store's credentials")
    if isinstance(error, OSError) and error.errno == getattr(errno, "EREMCHG", -1):
        return lasting(f"cannot {verb} {public_url(place)}: the store sends to another address, "
                       "which was not named; set that as the store's endpoint")
    if isinstance(error, (TypeError, AttributeError, KeyError, AssertionError)) or (
            isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)):
        return lasting(f"cannot {verb} {public_url(place)}: {reason or type(error).__name__}; "
                       "check the URL")
    return PlaceError(f"cannot {verb} {public_url(place)} at present "
                      f"({reason or type(error).__name__})")


def too_large(place: str, most: int) -> InvalidInputError:
    """Return the error of a content that is over `most` bytes."""
    return InvalidInputError(f"{public_url(place)} is over {most // 1_000_000} MB; reduce it first")


def limit(place: str, most: int) -> Any:  # noqa: ANN401 -- of fsspec
    """Return a callback of a download that refuses more than `most` bytes."""
    from fsspec.callbacks import Callback

    class Limit(Callback):  # type: ignore[misc]  # fsspec has no types
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            if self.value > most:
                raise too_large(place, most)

    return Limit()
