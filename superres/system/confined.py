"""Call functions on untrusted content in child processes of limited memory and time, which can be ended.

A decoder in native code may run for minutes, take all memory or crash: none of this must happen to the caller. A child
is started at the first call and kept for the next ones. It ends when its standard input does, so it does not outlive
its caller, however that ends.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

import numpy as np

from superres import errors
from superres.errors import SuperresError, plain

Values: TypeAlias = Mapping[str, Any]
"""Values by name: JSON values, bytes, and arrays of uint8."""
MOST_BYTES = 4_000_000_000  # of the bytes and arrays in one answer
WALL = 3.0  # seconds that a call may take per second of its limit of processor time
_START = ("import json, sys; sys.path[:] = json.loads(sys.argv[2]); from superres.system.confined import main; "
          "main(sys.argv[1])")
_LENGTH = struct.Struct("<I")  # of the JSON text that begins a message
# Further threads and heaps would reserve address space, which the limit of memory counts. Large blocks are mapped, so
# that a child that waits keeps none.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


class Confined:
    """Calls a generator function, "module:name", in child processes: one per call that is under way at a time.

    The function gets values by name, and calls `limit` to bound its process.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self._forget()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def _forget(self) -> None:
        self._lock, self._idle, self._busy = threading.Lock(), list[_Child](), set[_Child]()

    def _leave(self) -> None:
        """Close a forked process's copies of the pipes; the children are not its own."""
        for child in (*self._idle, *self._busy):
            child.leave()
        self._forget()

    def __call__(self, **values: Any) -> Generator[Values, None, None]:  # noqa: ANN401
        """Yield what the function yields for `values`; closing the iterator early ends the child.

        Raises:
            SuperresError: the function raised it.
            ValueError: the function raised another error, or its process ended; the message is the reason.
        """
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child is None or child.process.poll() is not None:
                try:
                    child = _Child(self.function)
                except OSError as error:
                    raise ValueError(f"its process cannot be started ({error.strerror})") from error
            self._busy.add(child)
        is_done = False
        try:
            raised: Exception | None = None
            for reply in child.call(values):
                if "error" in reply:
                    raised = vars(errors).get(reply["kind"], ValueError)(reply["error"])
                else:
                    yield reply
            is_done = True
            if raised is not None:
                raise raised
        finally:
            with self._lock:
                self._busy.discard(child)
                is_kept = is_done and len(self._idle) < (os.cpu_count() or 1)
                if is_kept:
                    self._idle.append(child)
            if not is_kept:
                child.end()

    def close(self) -> None:
        """End all child processes: calls under way raise ValueError, and later ones start new processes."""
        with self._lock:
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.process.kill()
        for child in idle:
            child.end()


class _Child:
    """A process that runs `main`, and the pipes to and from it."""

    def __init__(self, function: str) -> None:
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])  # Python ignores others
        # In a session of its own: Ctrl-C is for the caller, who may go on to read.
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _START, function, path], bufsize=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **_ENVIRONMENT},
            start_new_session=True)
        self.requests = cast("io.FileIO", self.process.stdin)
        self.replies = cast("io.FileIO", self.process.stdout)

    def call(self, values: Values) -> Iterator[Values]:
        """Yield the replies to a call; raise ValueError if the process ends meanwhile."""
        started, seconds = time.monotonic(), values.get("seconds", math.inf)
        try:
            _send(self.requests, values)
            while reply := _receive(self.replies):
                yield reply
        except OSError:
            status = self.end(0.5)
            if status == -getattr(signal, "SIGXCPU", 0) or time.monotonic() - started > seconds:
                raise ValueError(f"it takes over {seconds:g} seconds") from None
            end = f"signal {-status}" if status < 0 else f"status {status}"
            raise ValueError(f"its process ended with {end}") from None

    def end(self, patience: float = 0.0) -> int:
        """Kill the process, unless it ends within `patience` seconds; return its status, negative after a signal."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.requests.close()
        self.replies.close()
        return self.process.wait()

    def leave(self) -> None:
        """Close a forked process's copies of the pipes; the process is not its child."""
        self.requests.close()
        self.replies.close()
        self.process.returncode = 0


def limit(memory: int, seconds: float = math.inf) -> None:
    """Limit the rest of a call in a child as far as the system can; the process ends where it exceeds its time.

    Args:
        memory: bytes of address space, beyond those in use.
        seconds: of processor time; the call may take `WALL` times as long.
    """
    if seconds < math.inf:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, WALL * seconds)
        else:
            faulthandler.dump_traceback_later(WALL * seconds, exit=True)
    with suppress(ImportError, OSError, ValueError):
        import resource

        if seconds < math.inf:
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used + memory)


def _limit(kind: int, most: int) -> None:
    import resource

    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))  # the next call may raise it


def main(function: str) -> None:
    """Answer the calls from standard input on standard output, until the input ends."""
    requests, replies = io.FileIO(os.dup(0), "rb"), io.FileIO(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply
    module, _, name = function.partition(":")
    called = getattr(import_module(module), name)
    with suppress(OSError):  # the caller has ended
        while True:
            deque(map(partial(_send, replies), _replies(called, _receive(requests))), 0)


def _replies(called: Callable[..., Iterator[Values]], values: Values) -> Iterator[Values]:
    """Yield what a function yields, the error that it raises, if any, and an empty reply, which is the last one."""
    try:
        yield from called(**values)
    except SuperresError as error:
        yield {"error": str(error), "kind": type(error).__name__}
    except MemoryError:
        yield {"error": "it takes too much memory", "kind": "ValueError"}
    except Exception as error:  # decoders raise errors of many types for damaged content
        yield {"error": plain(str(error)) or type(error).__name__, "kind": "ValueError"}
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        faulthandler.cancel_dump_traceback_later()
    yield {}


def _send(pipe: io.FileIO, values: Values) -> None:
    """Write the length of a header, the header in JSON, and the content of bytes and arrays, whose sizes it has."""
    parts = {name: value for name, value in values.items() if isinstance(value, (bytes, np.ndarray))}
    sizes = {name: list(part.shape) if isinstance(part, np.ndarray) else len(part) for name, part in parts.items()}
    header = json.dumps([{**values, **dict.fromkeys(parts)}, sizes]).encode()
    for content in (_LENGTH.pack(len(header)) + header, *parts.values()):
        flat = np.ascontiguousarray(content).data if isinstance(content, np.ndarray) else memoryview(content)
        left = flat.cast("B")
        while left:
            left = left[pipe.write(left):]


def _receive(pipe: io.FileIO) -> dict[str, Any]:
    """Read what `_send` wrote; raise OSError if the pipe ends or its content is nothing of the kind."""
    try:
        values: dict[str, Any]
        values, sizes = json.loads(_read(pipe, *_LENGTH.unpack(_read(pipe, _LENGTH.size))))
        for name, size in sizes.items():
            content = _read(pipe, size if isinstance(size, int) else math.prod(size))
            values[name] = bytes(content) if isinstance(size, int) else np.frombuffer(content, np.uint8).reshape(size)
        return values
    except (ValueError, TypeError, AttributeError) as error:
        raise OSError("it is not a message") from error


def _read(pipe: io.FileIO, count: int) -> bytearray:
    if count > MOST_BYTES:
        raise ValueError("it is too long")
    content = bytearray(count)
    left = memoryview(content)
    while left:
        read = pipe.readinto(left)
        if not read:
            raise OSError("the pipe has ended")
        left = left[read:]
    return content
