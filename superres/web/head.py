"""The head of the page as link previews and search engines read it: title, description, address,
picture and icon; and what it shows until its scripts have laid it out.

Gradio's template has tags of its own, of which some name Gradio. They are removed from the
response, so each tag is there once.
"""

from __future__ import annotations

import asyncio
import functools
import io
import re
from dataclasses import dataclass, field
from html import escape

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superres.pictures.read import Pixels
from superres.tasks.faces import enlarge
from superres.web import drawing
from superres.web.card import SIZE, card, headline
from superres.web.content import TITLE
from superres.web.decoding import VisitorDecoding
from superres.web.opening import opening

CARD_PATH = "/card.png"
LOGIN = b'"auth_required":true'
"""What Gradio writes into the page of a visitor who has to log in."""
ICON_SIDE = 32  # of the icon, an enlarged input, in pixels
_OTHERS_TAGS = re.compile(
    rb'\s*<(?:meta\s+(?:property|name)="(?:og|twitter|description)\b[^>]*|title>[^<]*</title)>')


@dataclass(eq=False)
class Preview:
    """What the page shows of itself elsewhere: the card of a face that `decoding` draws from
    `source`, and its tags.

    `source` is uint8 [source, source, 3]. The card is drawn when it is first asked for, so no start
    waits for it.
    """

    decoding: VisitorDecoding
    source: Pixels
    _png: bytes = field(default=b"", init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def png(self) -> bytes:
        """Return the card as PNG with the mark; StoppedError if the server is stopping."""
        async with self._lock:
            self._png = self._png or await asyncio.to_thread(self._draw)
        return self._png

    def _draw(self) -> bytes:
        result = self.decoding.draw("card", self.source, self.decoding.upscaler.default)
        buffer = io.BytesIO()
        card(self.source, result.images[0]).save(buffer, "PNG", optimize=True)
        return buffer.getvalue()

    @functools.cached_property
    def opening(self) -> str:
        """What the page shows before its scripts do; "" without a warm-up."""
        first = self.decoding.first
        return "" if first is None else opening(self.decoding.upscaler.face_task, first,
                                                self.source)

    def tags(self, address: str) -> str:
        """Return the tags for the page at `address`, which ends in a slash."""
        task, said = (self.decoding.upscaler.face_task,
                      headline(self.source.shape[0] * self.source.shape[1]))
        text = (f"{said}: a model draws a face of {task.target_size} pixels from "
                f"{task.source_size}, several values per step. Watch it, race it, and draw others "
                "that fit as well.")
        picture = f"{address}{CARD_PATH[1:]}"
        alt = (f"{said}: the {task.source_size} input beside the face of {task.target_size} that a "
               "model drew from it")
        properties = {"title": TITLE, "description": text, "type": "website",
                      "site_name": "superres", "url": address, "image": picture,
                      "image:type": "image/png", "image:width": SIZE[0], "image:height": SIZE[1],
                      "image:alt": alt}
        twitter = {"card": "summary_large_image", "title": TITLE, "description": text,
                   "image": picture, "image:alt": alt}
        icon = drawing.data_uri(enlarge(self.source[None], "nearest", ICON_SIDE)[0], None)
        return "".join([
            f'<title>{TITLE}</title><meta name="description" content="{escape(text)}">',
            *(f'<meta property="og:{name}" content="{escape(str(value))}">' for name,
              value in properties.items()),
            *(f'<meta name="twitter:{name}" content="{escape(value)}">' for name,
              value in twitter.items()),
            f'<link rel="canonical" href="{escape(address)}"><link rel="icon" type="image/png" '
            f'href="{icon}">'])


def address_of(scope: Scope, root_path: str) -> str:
    """Return the URL of the page, with a slash at its end, as the visitor who sent a request knows
    it.

    A proxy names its scheme by X-Forwarded-Proto, which uvicorn reads, and serves the page under
    `root_path`.
    """
    host = Headers(scope=scope).get("host") or ":".join(map(str, scope["server"]))
    return f"{scope['scheme']}://{host}{root_path.rstrip('/')}/"


def with_preview(app: ASGIApp, preview: Preview, root_path: str = "") -> ASGIApp:
    """Return `app` whose page at / has the tags of `preview` in place of its own."""
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            await app(scope, receive, send)
            return
        start, parts = dict[str, object](), list[bytes]()

        async def send_with_tags(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body, headers = b"".join(parts), MutableHeaders(raw=start["headers"])  # type: ignore[arg-type]
            if headers.get("content-type", "").startswith("text/html"):
                body = tagged(body, preview.tags(address_of(scope, root_path)))
                if LOGIN not in body:
                    body = body.replace(b"<gradio-app", preview.opening.encode() + b"<gradio-app",
                                        1)
                headers["content-length"] = str(len(body))
            await send(start)
            await send({"type": "http.response.body", "body": body})

        await app(scope, receive, send_with_tags)

    return handle


def tagged(page: bytes, tags: str) -> bytes:
    """Return a page with `tags` at the start of its head, after its encoding, and without those
    that it had."""
    before, script, rest = page.partition(b"<script")  # scripts have texts of their own
    marker = re.search(rb"<meta charset=[^>]*>", before)
    place = marker.end() if marker else 0
    cleaned = _OTHERS_TAGS.sub(b"", before[place:])
    rest = rest.replace(b'<link rel="manifest" href="/manifest.json" />', b"", 1)
    return b"".join([before[:place], tags.encode(), cleaned, script, rest])
