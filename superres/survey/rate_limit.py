"""Limit the rate of enrolments, per client address and in total."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections.abc import Callable

WINDOW_SECONDS = 600.0
"""Seconds in which an empty token bucket refills completely."""
PER_ADDRESS = 120
"""Enrolments per client address in `WINDOW_SECONDS`, enough for a lecture hall behind one
address."""
TOTAL = 600
"""Enrolments of all clients in `WINDOW_SECONDS`."""


class EnrolmentLimit:
    """A token bucket per client address, and one for all enrolments. A limit of 0 means no limit.

    `clock` is monotonic, in seconds. Addresses are held in memory only, and are removed after their
    buckets have refilled.
    """

    def __init__(
        self, per_address: int = PER_ADDRESS, total: int = TOTAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address, self._total, self._clock = per_address, total, clock
        # time at which the bucket is full, by client; "" is all clients
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, address: str) -> int:
        """Count an enrolment from `address` and return 0; or return the seconds until the enrolment
        is allowed."""
        with self._lock:
            now = self._clock()
            limits = {"": self._total, _client(address): self._per_address}
            filled = {client: max(self._full_at.get(client, now), now) + WINDOW_SECONDS / limit
                      for client, limit in limits.items() if limit}
            excess = max(filled.values(), default=now) - now - WINDOW_SECONDS
            if excess > 1e-6:  # more than rounding errors
                return math.ceil(excess)
            self._full_at = {client: full_at for client, full_at in self._full_at.items()
                             if full_at > now} | filled
            return 0


def _client(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address; an address of another kind is
    prefixed."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"other {address}"  # for example a Unix socket
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
