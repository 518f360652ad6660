"""The passwords of the page, and a limit on how often they may be guessed."""

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
"""Wrong passwords from one address within WINDOW_SECONDS."""
IN_ALL = 60
"""Wrong passwords from all addresses together within WINDOW_SECONDS."""
MOST_KNOWN = 1000
"""Visitors who are remembered as having entered before."""

_Key = tuple[str, ...]


class Passwords:
    """Tells whether a name and a password are right, as Gradio asks.

    Wrong passwords are counted by address and in all. A browser that a user has entered with before is counted by
    itself for that user, so that strangers who guess cannot keep the user out.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], clock: Callable[[], float] = time.monotonic) -> None:
        """Take names and passwords; `clock` tells the time in seconds."""
        self._passwords = dict(pairs)
        self._clock = clock
        self._tries: deque[tuple[float, _Key]] = deque()
        self._known: OrderedDict[_Key, None] = OrderedDict()

    def __call__(self, name: str, password: str) -> bool:
        """Tell whether `password` is the one of `name`.

        Raises:
            HTTPException: 429, there were too many wrong ones; the password is not looked at.
        """
        *cookie, address = current.get() or ("",)
        browser = (*cookie, name)
        key = browser if browser in self._known else (_network_of(address.removeprefix("address ")),)
        wait = self._wait(key)
        if wait:
            told = f"too many wrong passwords; try again in {wait} seconds"
            raise HTTPException(429, told, {"retry-after": str(wait)})
        # Counted before it is known to be wrong, so that many at once are counted, too.
        self._tries.append((self._clock(), key))
        expected = self._passwords.get(name)
        if not hmac.compare_digest(password.encode(), (expected or "").encode()) or expected is None:
            return False
        self._tries.pop()
        if cookie:
            self._remember(browser)
        return True

    def _wait(self, key: _Key) -> int:
        """Return 0 if a password may be tried, or the seconds until then."""
        start = self._clock() - WINDOW_SECONDS
        while self._tries and self._tries[0][0] <= start:
            self._tries.popleft()
        own = [moment for moment, other in self._tries if other == key]
        strangers = [moment for moment, other in self._tries if other not in self._known]
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
    """Return the address, or of IPv6 the network of 64 bits, which one visitor may have to choose addresses from."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
