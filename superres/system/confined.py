"""Call functions on untrusted content in child processes of limited memory and time, which can be
ended.

A decoder in native code may run for minutes, take all memory or crash: none of this must happen to
the caller. A child is started at the first call and kept for the next ones. It ends when its
standard input does, so it does not outlive its caller, however that ends. It works only while its
caller waits for an answer.
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
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias, cast

import numpy as np

from superres import errors
from superres.errors import SuperresError, plain

Values: TypeAlias = Mapping[str, Any]
"""Values by name: JSON values, bytes, and arrays of uint8."""
MOST_BYTES = 1_000_000_000  # of the bytes and arrays in one message to a child
MOST_HEADER = 1_000_000  # bytes of the JSON text of a child's answer
# seconds that an answer may take per second of its limit of processor time, and at least
WALL, LEAST_WALL = 12, 60
_END = "end"  # of a call: names the error, or None, in its last answer
_OUT_OF_PROCESSOR, _OUT_OF_TIME = (
    # statuses of a process
    (-signal.SIGPROF, -signal.SIGALRM) if hasattr(signal, "setitimer") else (None, 1))
_KILLED = -9  # the status of a process
_START = ("import json, sys; sys.path[:] = json.loads(sys.argv[2]); from superres.system.confined "
          "import main; main(sys.argv[1])")
_LENGTH = struct.Struct("<I")  # of the JSON text that begins a message
# Further threads and heaps would reserve address space, which the limit of memory counts. Large
# blocks are mapped, so that a child that waits keeps none.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1",
                "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


class KilledError(ValueError):
    """A child was killed by another process, such as for lack of memory: the next one may
    succeed."""


class Confined:
    """Calls a generator function, "module:name", in child processes: one per call that is under way
    at a time.

    The function gets values by name, and calls `limit_memory` to bound its process. `most_bytes`
    bounds the bytes and arrays of each answer.
    """

    def __init__(self, function: str, most_bytes: int) -> None:
        self.function, self.most_bytes = function, most_bytes
        self._forget()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def _forget(self) -> None:
        self._lock, self._idle, self._busy = threading.RLock(), list[_Child](), set[_Child]()

    def _leave(self) -> None:
        """Close a forked process's copies of the pipes; the children are not its own."""
        for child in (*self._idle, *self._busy):
            child.leave()
        self._forget()

    def __call__(
        self, seconds: float = math.inf, **values: Any,  # noqa: ANN401
    ) -> Generator[Values, Values | None, None]:
        """Yield what the function yields for `values`; what is sent to the iterator is sent to it.

        Each answer may take `seconds` of processor time, and `wall_of` that by the clock. Closing
        the iterator early ends the child.

        Raises:
            SuperresError: the function raised it.
            ValueError: the function raised another error, or its process ended; the message is the
                reason.
        """
        child, is_kept = self._taken(), False
        try:
            reply = child.ask({**values, "seconds": None if math.isinf(seconds) else seconds},
                              seconds, self.most_bytes)
            while _END not in reply:
                reply = child.ask((yield reply) or {}, seconds, self.most_bytes)
            is_kept = True
            if reply[_END] is not None:
                raise vars(errors).get(reply["kind"], ValueError)(reply[_END])
        finally:
            with self._lock:
                self._busy.discard(child)
                is_kept = is_kept and len(self._idle) < (os.cpu_count() or 1)
                if is_kept:
                    self._idle.append(child)
            if not is_kept:
                child.end()

    def start(self) -> None:
        """Start a child for a later call: it imports the function's module while the caller does
        other work."""
        with suppress(ValueError), self._lock:  # the call says why no process can be started
            child = self._taken()
            self._busy.discard(child)
            self._idle.append(child)

    def _taken(self) -> _Child:
        """Return a child that waits for a call, now busy."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child is None or child.process.poll() is not None:
                try:
                    child = _Child(self.function)
                except OSError as error:
                    raise ValueError(f"its process cannot be started ({error.strerror})") from error
            self._busy.add(child)
        return child

    def close(self) -> None:
        """End all child processes: calls under way raise ValueError, and later ones start new
        processes."""
        with self._lock:
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.process.kill()
        for child in idle:
            child.end()


class _Child:
    """A process that runs `main`, and the pipes to and from it."""

    def __init__(self, function: str) -> None:
        # Python ignores others
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        # In a session of its own: Ctrl-C is for the caller, who may go on to read.
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _START, function, path], bufsize=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **_ENVIRONMENT},
            start_new_session=True)
        self.requests = cast("io.FileIO", self.process.stdin)
        self.replies = cast("io.FileIO", self.process.stdout)

    def ask(self, values: Values, seconds: float, most_bytes: int) -> dict[str, Any]:
        """Return the answer to a message; raise ValueError if the process ends meanwhile, or it is
        too long."""
        try:
            _send(self.requests, values)
            return _receive(self.replies, most_bytes, MOST_HEADER)
        except OSError:
            status = self.end(0.5)
        reason = ("its process ended with "
                  f"{f'signal {-status}' if status < 0 else f'status {status}'}")
        if status == _OUT_OF_PROCESSOR:
            reason = f"it takes over {seconds:g} seconds of processor time"
        elif status == _OUT_OF_TIME and seconds < math.inf:
            reason = f"no answer for {wall_of(seconds):g} seconds; the machine is too busy"
        raise (KilledError if status == _KILLED else ValueError)(reason)

    def end(self, patience: float = 0.0) -> int:
        """Kill the process, unless it ends within `patience` seconds; return its status, negative
        after a signal."""
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


def wall_of(seconds: float) -> float:
    """Return the seconds by the clock in which an answer must come that may take `seconds` of
    processor time."""
    return max(WALL * seconds, LEAST_WALL)


def limit_memory(most: int | None) -> None:
    """Let a child use `most` further bytes of address space for the rest of a call, as far as the
    system can limit it.

    None ends the limit.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (hard if most is None else used + most, hard))


def limit_time(seconds: float) -> None:
    """Let a child go on for `seconds` of processor time and `wall_of` that by the clock, then end
    it; 0: no limit."""
    wall = wall_of(seconds) if seconds else 0.0
    if hasattr(signal, "setitimer"):
        # SIGPROF and SIGALRM end a process that does not handle them
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, wall)
    elif wall:
        faulthandler.dump_traceback_later(wall, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def main(function: str) -> None:
    """Answer the calls from standard input on standard output, until the input ends."""
    requests, replies = io.FileIO(os.dup(0), "rb"), io.FileIO(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply
    for name in ("SIGPROF", "SIGALRM") if hasattr(signal, "setitimer") else ():
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # the caller may ignore them
    module, _, name = function.partition(":")
    called = getattr(import_module(module), name)
    with suppress(OSError):  # the caller has ended
        while True:
            _converse(called, requests, replies)
            limit_memory(None)


def _converse(called: Callable[..., Generator[Values, Values | None, None]], requests: io.FileIO,
              replies: io.FileIO,
              ) -> None:
    """Answer the messages of one call, one by one."""
    values = _receive(requests, MOST_BYTES)
    seconds, message = values.pop("seconds") or 0.0, None
    reply: Values = {}
    call = called(**values)
    del values
    while _END not in reply:
        limit_time(seconds)
        reply = _reply(call, message)
        limit_time(0.0)
        _send(replies, reply)
        if _END not in reply:
            reply = {}  # frees what it has
            message = _receive(requests, MOST_BYTES) or None


def _reply(call: Generator[Values, Values | None, None], message: Values | None) -> Values:
    """Return what a function yields next, or its end: the error that it raises, None without
    one."""
    try:
        return call.send(message)
    except StopIteration:
        return {_END: None}
    except SuperresError as error:
        return {_END: str(error), "kind": type(error).__name__}
    except MemoryError:
        return {_END: "it takes too much memory", "kind": "ValueError"}
    except Exception as error:  # decoders raise errors of many types for damaged content
        return {_END: plain(str(error)) or type(error).__name__, "kind": "ValueError"}


def _send(pipe: io.FileIO, values: Values) -> None:
    """Write the length of a header, the header in JSON, and the content of bytes and arrays, whose
    sizes it has."""
    parts = {name: value for name, value in values.items() if isinstance(value,
                                                                         (bytes, np.ndarray))}
    sizes = {name: list(part.shape) if isinstance(part, np.ndarray) else len(part) for name,
             part in parts.items()}
    header = json.dumps([{**values, **dict.fromkeys(parts)}, sizes]).encode()
    for content in (_LENGTH.pack(len(header)) + header, *parts.values()):
        flat = np.ascontiguousarray(content).data if isinstance(content,
                                                                np.ndarray) else memoryview(content)
        left = flat.cast("B")
        while left:
            left = left[pipe.write(left):]


def _receive(pipe: io.FileIO, most_bytes: int, most_header: int = MOST_BYTES) -> dict[str, Any]:
    """Read what `_send` wrote.

    Raises OSError if the pipe ends or its content is nothing of the kind, and ValueError if it has
    more bytes.
    """
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size).getvalue())
    header = _read(pipe, _bounded(length, most_header))
    values: dict[str, Any]
    try:
        values, shapes = json.loads(header.getvalue())
        sizes = {name: shape if isinstance(shape, int) else math.prod(shape) for name,
                 shape in shapes.items()}
        are_sizes = isinstance(values, dict) and all(size >= 0 for size in sizes.values())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OSError("it is not a message") from error
    if not are_sizes:
        raise OSError("it is not a message")
    _bounded(sum(sizes.values()), most_bytes)
    for name, size in sizes.items():
        content, shape = _read(pipe, size), shapes[name]
        values[name] = content.getvalue() if isinstance(shape, int) else (
            np.frombuffer(content.getbuffer(), np.uint8).reshape(shape))
    return values


def _bounded(count: int, most: int) -> int:
    if count > most:
        raise ValueError(f"its answer has over {most:,} bytes")
    return count


def _read(pipe: io.FileIO, count: int) -> io.BytesIO:
    # gives its memory to bytes and to an array that can be changed: all is there once
    content = io.BytesIO()
    content.seek(max(count - 1, 0))
    content.write(bytes(count > 0))
    left = content.getbuffer()
    while left:
        read = pipe.readinto(left)
        if not read:
            raise OSError("the pipe has ended")
        left = left[read:]
    return content
