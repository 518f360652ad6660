"""A process that serves an S3 store on loopback that fails.

    python tests/batch/store_with_faults.py ERRORS CUTS

The store has an empty bucket, `faces`. A proxy in front of moto's server answers the share ERRORS
of requests with 500 or 503, cuts the share CUTS of downloads, and counts requests and bytes. GET
/-/counts gives the counts as JSON. What fails depends on the number of the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections import Counter

import boto3
from aiohttp import ClientSession, TCPConnector, web
from moto.server import ThreadedMotoServer

HOST = "127.0.0.1"
SLOW = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BROKEN = b"<Error><Code>InternalError</Code><Message>Internal error.</Message></Error>"
DROPPED = ("transfer-encoding", "content-length", "connection", "content-encoding")


class Proxy:
    """Passes requests on to `target`, and fails `errors` of them and `cuts` of the downloads."""

    def __init__(self, target: str, errors: float, cuts: float) -> None:
        self.target, self.errors, self.cuts, self.draw = target, errors, cuts, random.Random(0)
        self.counts: Counter[str] = Counter()

    async def start(self, app: web.Application) -> None:
        """Open the connections to the store."""
        self.session = ClientSession(connector=TCPConnector(limit=64), auto_decompress=False)

    async def stop(self, app: web.Application) -> None:
        """Close the connections to the store."""
        await self.session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.path == "/-/counts":
            return web.json_response(dict(self.counts))
        body = await request.read()
        self.counts[request.method] += 1
        self.counts["bytes in"] += len(body)
        fate = self.draw.random()
        if fate < self.errors:
            status = 500 if fate < self.errors / 2 else 503
            self.counts[str(status)] += 1
            return web.Response(status=status, body=BROKEN if status == 500 else SLOW,
                                content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if name.lower()
                   != "connection"}
        async with self.session.request(request.method, f"{self.target}{request.raw_path}",
                                        data=body, headers=headers, allow_redirects=False,
                                        skip_auto_headers=("Content-Type",)) as answer:
            content = await answer.read()
            kept = [(name, value) for name, value in answer.headers.items() if name.lower()
                    not in DROPPED]
            self.counts["bytes out"] += len(content)
            if request.method == "GET" and len(content) > 1 and self.draw.random() < self.cuts:
                self.counts["cut"] += 1
                return await self._cut(request, answer.status, kept, content)
            response = web.Response(status=answer.status, body=content)
            if request.method == "HEAD" and "Content-Length" in answer.headers:
                response.headers["Content-Length"] = answer.headers["Content-Length"]
            for name, value in kept:
                response.headers[name] = value
            return response

    @staticmethod
    async def _cut(request: web.Request, status: int, headers: list[tuple[str, str]], content: bytes
                   ) -> web.StreamResponse:
        """Send half of a download and close the connection."""
        response = web.StreamResponse(status=status)
        for name, value in headers:
            response.headers[name] = value
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        if request.transport is not None:
            request.transport.abort()
        return response


async def run(proxy: Proxy) -> None:
    """Serve the proxy, print its address, and wait until the process is ended."""
    app = web.Application(client_max_size=1 << 31)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    app.on_startup.append(proxy.start)
    app.on_cleanup.append(proxy.stop)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    endpoint = f"http://{HOST}:{runner.addresses[0][1]}"
    sys.stdout.write(json.dumps({"endpoint": endpoint}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve; the store itself has a port of its own on the same host."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
    store = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    store.start()
    own = f"http://{HOST}:{store.get_host_and_port()[1]}"
    boto3.client("s3", endpoint_url=own, region_name="us-east-1", aws_access_key_id="key",
                 aws_secret_access_key="secret",  # noqa: S106 -- moto takes any
                 ).create_bucket(Bucket="faces")
    asyncio.run(run(Proxy(own, *map(float, sys.argv[1:]))))


if __name__ == "__main__":
    main()
