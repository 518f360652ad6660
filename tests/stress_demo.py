"""Requests to a running web demo, with hostile uploads among them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

HTTP = httpx.Client(timeout=300)
FACE = Path(__file__).parents[1] / "scripts" / "faces" / "face-1.png"


def encoded(image: Image.Image, suffix: str, **options: Any) -> bytes:
    """Return the content of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, suffix, **options)
    return buffer.getvalue()


def huge_png(side: int) -> bytes:
    """Return a PNG whose header declares `side` x `side` pixels."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I",
                                                                        zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def zipped(members: dict[str, bytes]) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def hostile_files(seed: int = 0) -> dict[str, tuple[str, bytes, bool]]:
    """Return hostile and unusual files by kind: the name, the content, and whether the file can be
    upscaled."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(40, 120))
    photo = Image.fromarray(rng.integers(0, 256, (size, size + 20, 3), np.uint8))
    png = encoded(photo, "PNG")
    rotated = Image.Exif()
    rotated[0x0112] = 6
    frames = [Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)) for _ in range(3)]
    sixteen = Image.fromarray(rng.integers(0, 65536, (30, 30), np.uint16))
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>'
    return {
        "text as PNG": ("face.png", b"not a picture " * 50, False),
        "truncated PNG": ("face.png", png[:len(png) // 2], False),
        "truncated JPEG": ("face.jpg", encoded(photo, "JPEG")[:400], False),
        "1x1": ("dot.png", encoded(photo.resize((1, 1)), "PNG"), False),
        "1 pixel high": ("line.png", encoded(photo.resize((5000, 1)), "PNG"), False),
        "huge dimensions": ("huge.png", huge_png(100_000), False),
        "large dimensions, tiny file": ("white.png", encoded(Image.new("1", (9000, 9000)), "PNG"),
                                        False),
        "animated GIF": ("moving.gif",
                         encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), True),
        "CMYK": ("print.jpg", encoded(photo.convert("CMYK"), "JPEG"), True),
        "16-bit": ("deep.png", encoded(sixteen, "PNG"), True),
        "alpha": ("clear.png", encoded(Image.new("RGBA", (40, 40), (255, 0, 0, 0)), "PNG"), True),
        "EXIF-rotated": ("phone.jpg", encoded(photo, "JPEG", exif=rotated), True),
        "SVG": ("drawing.svg", svg, False),
        "SVG as PNG": ("drawing.png", svg, False),
        "HTML name": ("<img src=x onerror=alert(1)>.png", b"nothing", False),
        "path traversal name": ("../../../../tmp/superres-traversal.png", png, True),
        "0 bytes": ("empty.png", b"", False),
        "palette": ("palette.png", encoded(photo.convert("P"), "PNG"), True),
    }


def hostile_zips() -> dict[str, tuple[bytes, int, int]]:
    """Return zip files by kind: the content, the number of files that can be upscaled, and the
    number of other files.

    Hidden members and those that are no pictures are left out.

    Both numbers are 0 for a zip file that is refused completely.
    """
    png = FACE.read_bytes()
    names = ("../../../../tmp/superres-traversal.png", "/tmp/superres-absolute.png", "C:\\superres-windows.png",  # noqa: S108
             "a/../../b.png", "__MACOSX/._face.png", ".hidden.png")
    broken = bytearray(zipped({"face.png": png, "other.png": png}))
    broken[60:90] = bytes(30)
    return {
        "path traversal": (zipped(dict.fromkeys(names, png)), 4, 0),
        "zip bomb": (zipped({"bomb.png": bytes(300_000_000), "face.png": png}), 1, 1),
        "zip in a zip": (zipped({"inner.zip": zipped({"face.png": png}), "face.png": png}), 1, 0),
        "damaged member": (bytes(broken), 1, 1),
        "many members": (zipped({f"{number}.png": b"" for number in range(5000)}), 0, 0),
        "truncated": (zipped({"face.png": png})[:-40], 0, 1),
        "empty": (zipped({}), 0, 0),
    }


def send(url: str, name: str, content: bytes) -> dict[str, Any]:
    """Upload a file under any name, and return its representation in a request."""
    response = HTTP.post(f"{url}/gradio_api/upload", files={"files": (name, content)})
    response.raise_for_status()
    return {"path": response.json()[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def call(url: str, endpoint: str, arguments: dict[str, Any]) -> tuple[list[Any], str]:
    """Call an endpoint and return its last outputs and an empty error, or no outputs and the
    error."""
    started = HTTP.post(f"{url}/gradio_api/call/v2/{endpoint}", json=arguments)
    started.raise_for_status()
    kind = ""
    with HTTP.stream("GET",
                     f"{url}/gradio_api/call/{endpoint}/{started.json()['event_id']}") as answers:
        for line in answers.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind == "complete":
                return json.loads(line.removeprefix("data: ")), ""
            elif line.startswith("data: ") and kind == "error":
                return [], json.loads(line.removeprefix("data: "))["error"]
    return [], "the response is incomplete"


def try_image(url: str, name: str, content: bytes, settings: dict[str, Any]) -> str:
    """Upload and upscale an image; return "" for a correct result, or the error."""
    outputs, error = call(url, "upscale", {"image": send(url, name, content), **settings})
    if error:
        return error
    files, report = outputs
    picture = Image.open(io.BytesIO(HTTP.get(files[0]["url"]).content))
    is_whole = report["complete"] and picture.width * picture.height == report["samples"][0][
        "tokens"] / 3
    return "" if is_whole else f"unexpected result {report} {picture.size}"


def try_zip(url: str, content: bytes, settings: dict[str, Any]) -> tuple[list[int], str]:
    """Upload and upscale a zip file; return the numbers of succeeded and failed files, and the
    error or ""."""
    outputs, error = call(url, "upscale_batch", {"files": [send(url, "faces.zip", content)],
                                                 **settings})
    statuses = [row["status"] for row in outputs[1]["rows"]] if outputs else []
    return [statuses.count("ok"), statuses.count("failed")], error


def is_clear(message: str) -> bool:
    """Return whether an error has a reason and a remedy, and no path of the server."""
    return ";" in message and "superres-web-" not in message and "<" not in message


def check(url: str, seed: int, **settings: Any) -> tuple[Counter[str], list[str]]:
    """Upload each hostile file and zip file once; return the counts of outcomes, and the failed
    checks."""
    outcomes, wrong = Counter[str](), []
    for kind, (name, content, usable) in hostile_files(seed).items():
        error = try_image(url, name, content, settings)
        outcomes["message" if error else "result"] += 1
        if usable != (not error) or (error and not is_clear(error)):
            wrong.append(f"{kind}: {error or 'a result'}")
    for kind, (content, good, bad) in hostile_zips().items():
        counts, error = try_zip(url, content, settings)
        outcomes["message" if error else "result"] += 1
        if counts != [good, bad] or bool(error) != (good + bad == 0) or (error
                                                                         and not is_clear(error)):
            wrong.append(f"{kind} zip: {counts} {error}")
    return outcomes, wrong
