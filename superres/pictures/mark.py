"""The mark on pictures that a model drew: IPTC's property for the source of the pixels, which other
programs read, in an XMP packet.

Nothing else of an input is carried over to a result.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from html import escape  # that of xml.sax imports the client of HTTP
from typing import Any
from xml.etree import ElementTree

from superres.version import __version__

DRAWN = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""The mark: IPTC's term for media that a trained model made."""
SOFTWARE = "superres"
MAX_BYTES = 2**20  # of an XMP packet that is read
_NAMESPACES = {
    "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "superres": "urn:superres:",
    "x": "adobe:ns:meta/", "xmp": "http://ns.adobe.com/xap/1.0/",
}
"""URIs of XMP's namespaces by their usual prefixes."""
_PROPERTIES = {"mark": "Iptc4xmpExt:DigitalSourceType", "tool": "xmp:CreatorTool",
               "record": "superres:record"}
_ERRORS = (ElementTree.ParseError, ValueError, LookupError)  # the last one: unknown encodings


def marked(record: Mapping[str, Any] | None = None) -> bytes:
    """Return an XMP packet with the mark, and with `record` as JSON if there is one."""
    return _marked(json.dumps(record) if record else "")


@functools.lru_cache(maxsize=16)  # the pictures of a batch usually have one packet
def _marked(record: str) -> bytes:
    texts = {"mark": DRAWN, "tool": f"{SOFTWARE} {__version__}", "record": record}
    names = {f' xmlns:{prefix}="{uri}"' for prefix, uri in _NAMESPACES.items()
             if record or prefix != SOFTWARE}
    properties = "".join(f"<{_PROPERTIES[key]}>{escape(text, quote=False)}</{_PROPERTIES[key]}>"
                         for key, text in texts.items() if text)
    return ('<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
            f'<x:xmpmeta{"".join(sorted(names))}><rdf:RDF><rdf:Description rdf:about="">'
            f'{properties}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="r"?>').encode()


def origin(xmp: bytes | str | None) -> dict[str, str]:
    """Return what an XMP packet says of a picture's origin: "mark", "tool", "record"; {} if it
    cannot be read.

    To be called in a process of limited memory and time, see `superres.pictures.untrusted`.
    """
    packet = xmp.encode() if isinstance(xmp, str) else xmp
    if not isinstance(packet, bytes) or len(packet) > MAX_BYTES:
        return {}
    try:
        root = ElementTree.fromstring(packet.strip(b"\0 \t\r\n"))  # noqa: S314 -- see above
    except _ERRORS:
        return {}
    found = dict[str, str]()
    for node in (node for rdf in root.iter(_name("rdf:RDF")) for node in rdf):
        for key, name in _PROPERTIES.items():
            element, text = node.find(_name(name)), node.get(_name(name))
            if element is not None and text is None:
                text = element.text or element.get(_name("rdf:resource")) or ""
            if text is not None:
                found.setdefault(key, text.strip())
    return found


def _name(name: str) -> str:
    """Return the name of a property in ElementTree's form; `name` is prefix:local."""
    prefix, _, local = name.partition(":")
    return f"{{{_NAMESPACES[prefix]}}}{local}"
