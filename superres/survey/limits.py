"""Limit the rate at which raters enrol, per client address and in total."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections.abc import Callable

WINDOW_SECONDS = 600.0
"""Time in which a limit's whole number becomes available again."""
PER_ADDRESS = 120
"""Enrolments per client address in `WINDOW_SECONDS`: a lecture hall behind one address starts at once."""
IN_ALL = 600
"""Enrolments of all clients in `WINDOW_SECONDS`."""
ROUNDING_SECONDS = 1e-6


class EnrolmentLimit:
    """Token buckets in memory: a full bucket may be taken at once, and fills again in `WINDOW_SECONDS`.

    Addresses are not stored: an entry is dropped once its bucket is full again, and all of them with the process.
    """

    def __init__(
        self, per_address: int = PER_ADDRESS, in_all: int = IN_ALL, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with full buckets.

        Args:
            per_address: enrolments per client address in `WINDOW_SECONDS`, 0 for no limit.
            in_all: enrolments of all clients in that time, 0 for no limit.
            clock: seconds that never go back.
        """
        self._per_address, self._in_all, self._clock = per_address, in_all, clock
        self._full_at: dict[str, float] = {}  # by client: when its bucket is full again
        self._drop_from = 1024
        self._lock = threading.Lock()

    def take(self, address: str) -> int:
        """Count an enrolment from `address` and return 0, or return the seconds to wait before it is allowed."""
        with self._lock:
            now = self._clock()
            limits = {"": self._in_all, client_of(address): self._per_address}
            filled = {client: max(self._full_at.get(client, now), now) + WINDOW_SECONDS / limit
                      for client, limit in limits.items() if limit}
            excess = max(filled.values(), default=now) - now - WINDOW_SECONDS
            if excess > ROUNDING_SECONDS:
                return math.ceil(excess)
            self._full_at.update(filled)
            if len(self._full_at) > self._drop_from:
                self._full_at = {client: full_at for client, full_at in self._full_at.items() if full_at > now}
                self._drop_from = 1024 + 2 * len(self._full_at)
            return 0


def client_of(address: str) -> str:
    """Return the key of a client: an IPv4 address, or the 64-bit network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"other {address}"  # such as a Unix socket
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
