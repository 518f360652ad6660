"""The page's passwords, and a limit on wrong attempts."""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from starlette.exceptions import HTTPException

from superres.web.visitors import current

WINDOW_SECONDS = 60.0
PER_VISITOR = 5
"""Allowed wrong passwords per address within WINDOW_SECONDS."""
IN_ALL = 60
"""Allowed wrong passwords from all addresses together within WINDOW_SECONDS."""
MOST_KNOWN = 1000
"""Largest number of browsers that are remembered after a login."""

_Key = tuple[str, ...]


class Passwords:
    """Checks names and passwords for Gradio.

    Wrong passwords are counted per address and in all. A browser from which a user has logged in before is counted
    separately, so other people's wrong attempts do not lock the user out.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], clock: Callable[[], float] = time.monotonic) -> None:
        """Store names and passwords; `clock` returns the time in seconds."""
        self._passwords = dict(pairs)
        self._clock = clock
        self._attempts: deque[tuple[float, _Key]] = deque()
        self._known: OrderedDict[_Key, None] = OrderedDict()

    def __call__(self, name: str, password: str) -> bool:
        """Return whether `password` is the password of `name`.

        Raises:
            HTTPException: status 429 after too many wrong passwords, without a check of this password.
        """
        *cookie, address = current.get() or ("",)
        browser = (*cookie, name)
        key = browser if browser in self._known else (_network_of(address.removeprefix("address ")),)
        wait = self._wait(key)
        if wait:
            message = f"too many wrong passwords; try again in {wait} seconds"
            raise HTTPException(429, message, {"retry-after": str(wait)})
        # The attempt counts until the password is known to be right, so simultaneous attempts are limited too.
        self._attempts.append((self._clock(), key))
        expected = self._passwords.get(name)
        if not hmac.compare_digest(password.encode(), (expected or "").encode()) or expected is None:
            return False
        self._attempts.pop()
        if cookie:
            self._remember(browser)
        return True

    def _wait(self, key: _Key) -> int:
        """Return the seconds until the next attempt is allowed; 0 if it is allowed now."""
        start = self._clock() - WINDOW_SECONDS
        while self._attempts and self._attempts[0][0] <= start:
            self._attempts.popleft()
        own = [moment for moment, other in self._attempts if other == key]
        strangers = [moment for moment, other in self._attempts if other not in self._known]
        full = [own[-PER_VISITOR]] if len(own) >= PER_VISITOR else []
        if key not in self._known and len(strangers) >= IN_ALL:
            full.append(strangers[-IN_ALL])
        return math.ceil(max(full) - start) if full else 0

    def _remember(self, browser: _Key) -> None:
        self._known[browser] = None
        self._known.move_to_end(browser)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


def _network_of(address: str) -> str:
    """Return the address; for IPv6 its 64-bit network, since one visitor may use all addresses in it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
