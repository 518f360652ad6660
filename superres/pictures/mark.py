"""What a picture's file says beside its pixels: what is kept of an input, and the mark on pictures
that a model drew.

Kept is what describes the picture: texts, author, rights, dates, place (EXIF, XMP, and IPTC as
XMP). What describes the input's file or the camera is not: sizes, orientation, thumbnails, history,
make, model, lens, serial numbers, and the source of the pixels. The mark is IPTC's property for
that source, which other programs read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from superres.errors import first_line, plain
from superres.pictures import exif
from superres.version import __version__

DRAWN = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""The mark: IPTC's term for media that a trained model made."""
SOFTWARE = "superres"
MAX_BYTES, MAX_DEPTH = 2**20, 32  # of an XMP packet that is read
MOST_NOTES = 20  # lines about one picture
_XML = "http://www.w3.org/XML/1998/namespace"
_NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "x": "adobe:ns:meta/",
    "superres": "urn:superres:", "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/", "xmpRights": "http://ns.adobe.com/xap/1.0/rights/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "plus": "http://ns.useplus.org/ldf/xmp/1.0/",
    "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    "exif": "http://ns.adobe.com/exif/1.0/", "tiff": "http://ns.adobe.com/tiff/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/", "cc": "http://creativecommons.org/ns#",
}
"""URIs of XMP's namespaces by their usual prefixes."""
_KEPT = {
    "dc": "contributor coverage creator date description language publisher relation rights source "
    "subject title",
    "xmp": "CreateDate Label Rating",
    "xmpRights": "Certificate Marked Owner UsageTerms WebStatement",
    "photoshop": "AuthorsPosition CaptionWriter Category City Country Credit DateCreated Headline "
    "Instructions Source State SupplementalCategories TransmissionReference Urgency",
    "Iptc4xmpCore": "AltTextAccessibility CountryCode CreatorContactInfo ExtDescrAccessibility "
    "IntellectualGenre Location Scene SubjectCode",
    "Iptc4xmpExt": "AboutCvTerm AddlModelInfo ArtworkOrObject Contributor Event Genre "
    "LocationCreated LocationShown ModelAge OrganisationInImageCode OrganisationInImageName "
    "PersonInImage PersonInImageWDetails",
    "plus": "CopyrightOwner CreditLineRequired DataMining ImageCreator ImageSupplier Licensor "
    "MinorModelAgeDisclosure ModelReleaseID ModelReleaseStatus OtherConstraints PropertyReleaseID "
    "PropertyReleaseStatus",
    "exif": "DateTimeDigitized DateTimeOriginal GPSAltitude GPSAltitudeRef GPSAreaInformation "
    "GPSDestBearing GPSDestLatitude GPSDestLongitude GPSImgDirection GPSImgDirectionRef "
    "GPSLatitude GPSLongitude GPSMapDatum GPSTimeStamp GPSVersionID UserComment",
    "tiff": "Artist Copyright DateTime ImageDescription",
    "lr": "hierarchicalSubject weightedFlatSubject",
    "cc": "attributionName attributionURL license morePermissions",
}
"""Names of the XMP properties that are kept, by prefix."""
_IPTC = {
    5: "dc:title", 25: "dc:subject", 40: "photoshop:Instructions", 55: "photoshop:DateCreated",
    80: "dc:creator", 85: "photoshop:AuthorsPosition", 90: "photoshop:City",
    92: "Iptc4xmpCore:Location", 95: "photoshop:State", 100: "Iptc4xmpCore:CountryCode",
    101: "photoshop:Country", 103: "photoshop:TransmissionReference", 105: "photoshop:Headline",
    110: "photoshop:Credit", 115: "photoshop:Source", 116: "dc:rights", 120: "dc:description",
    122: "photoshop:CaptionWriter",
}
"""The XMP properties of IPTC's data sets of record 2, by their numbers."""
# of a damaged packet; the last one: unknown encodings
_ERRORS = (ElementTree.ParseError, ValueError, LookupError)
_LISTS = {"dc:title": "Alt", "dc:rights": "Alt", "dc:description": "Alt", "dc:subject": "Bag",
          "dc:creator": "Seq"}
for _prefix, _uri in _NAMESPACES.items():
    ElementTree.register_namespace(_prefix, _uri)


def _name(name: str) -> str:
    """Return the name of a property in ElementTree's form; `name` is prefix:local."""
    prefix, _, local = name.partition(":")
    return f"{{{_NAMESPACES[prefix]}}}{local}"


_KEPT_NAMES = frozenset(_name(f"{prefix}:{local}") for prefix,
                        names in _KEPT.items() for local in names.split())
_KNOWN = frozenset({_XML, *(_NAMESPACES[prefix] for prefix in ("rdf", *_KEPT))})
_SOURCE_TYPE, _TOOL, _RECORD = map(_name, ("Iptc4xmpExt:DigitalSourceType", "xmp:CreatorTool",
                                           "superres:record"))


@dataclass(frozen=True)
class Metadata:
    """What is kept of an input's metadata.

    Attributes:
        exif: an EXIF block; None if there is nothing to keep.
        xmp: an XMP packet; None if there is nothing to keep.
        notes: lines about metadata that is damaged and ignored.
    """

    exif: bytes | None = None
    xmp: bytes | None = None
    notes: tuple[str, ...] = ()


class Notes(list[str]):
    """Lines about what is ignored in a picture's file: at most `MOST_NOTES`, and the number of the
    others in `more`."""

    more = 0

    def append(self, line: str, /) -> None:
        """Add a line, or count it."""
        if len(self) < MOST_NOTES:
            super().append(line)
        else:
            self.more += 1

    def lines(self) -> tuple[str, ...]:
        """Return the lines, with one about the others."""
        return (*self, *([f"and {self.more:,} more notes"] if self.more else []))


def ignored(name: str, error: object) -> str:
    """Return the note about an item of metadata that is ignored."""
    return f"metadata ignored: {name} ({plain(str(error)) or 'damaged'})"


def tiff_info(file: IO[bytes] | None) -> dict[str, Any]:
    """Return the metadata of an opened TIFF as Pillow's `Image.info` has those of other formats; {}
    for other files.

    They are tags of the file itself, which Pillow closes when it loads the pixels.
    """
    if file is None:
        return {}
    place = file.tell()
    block = exif.read_block(file)
    file.seek(place)
    return {"exif": block} if block.order else {}


def kept_metadata(info: Mapping[Any, Any]) -> Metadata:
    """Return what is kept of a picture's metadata; `info` has them as Pillow's `Image.info` or
    `tiff_info` do."""
    given = info.get("exif") or exif.Block()
    block = exif.read_block(given) if isinstance(given, bytes) else given
    notes, properties = [ignored("EXIF", "")] if block.is_damaged else [], dict[str, Element]()
    packet, iptc = (block.directories[exif.MAIN].pop(tag, (0, b""))[1] for tag in (exif.XMP,
                                                                                   exif.IPTC))
    packet, iptc = info.get("xmp") or packet, info.get("iptc") or iptc
    try:
        properties = _properties(packet) if packet else {}
    except _ERRORS as error:
        notes.append(ignored("XMP", first_line(error)))
    photoshop = info.get("photoshop")
    iptc = photoshop.get(0x0404, iptc) if isinstance(photoshop, dict) else info.get("iptc", iptc)
    properties = {**_of_iptc(iptc if isinstance(iptc, bytes) else b""), **properties}
    has_tags = any(block.directories.values())
    return Metadata(block.to_bytes() if has_tags else None,
                    _packet(properties) if properties else None, tuple(notes))


def marked(xmp: bytes | None, record: Mapping[str, Any] | None = None) -> bytes:
    """Return an XMP packet with the mark, and with `record` as JSON if there is one; `xmp` is of
    `kept_metadata`."""
    return _marked(xmp, json.dumps(record) if record else "")


@functools.lru_cache(maxsize=16)  # a batch of pictures usually has one packet
def _marked(xmp: bytes | None, record: str) -> bytes:
    properties = {} if xmp is None else _properties(xmp)
    for name, text in ((_TOOL, f"{SOFTWARE} {__version__}"), (_SOURCE_TYPE, DRAWN),
                       (_RECORD, record)):
        if text:
            properties[name] = _element(name, text)
    return _packet(properties)


def origin(xmp: bytes | str | None) -> dict[str, str]:
    """Return what an XMP packet says of a picture's origin: "mark", "tool", "record"; {} if it
    cannot be read."""
    names = {"mark": _SOURCE_TYPE, "tool": _TOOL, "record": _RECORD}
    try:
        found = _properties(xmp, frozenset(names.values())) if xmp else {}
    except _ERRORS:
        return {}
    return {key: (found[name].text or found[name].get(_name("rdf:resource")) or "").strip()
            for key, name in names.items() if name in found}


class _Builder(ElementTree.TreeBuilder):
    """Builds the tree of a document without a DOCTYPE, and so without entities, and without deep
    nesting."""

    depth = 0

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("XMP has no DOCTYPE")

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("the elements are nested too deeply")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self.depth -= 1
        return super().end(tag)


def _parse(packet: bytes | str) -> Element:
    """Parse an XMP packet; raises one of `_ERRORS` if it is damaged."""
    packet = packet.encode() if isinstance(packet, str) else packet
    if not isinstance(packet, bytes) or len(packet) > MAX_BYTES:
        raise ValueError("the packet is no text, or too long")
    parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 -- see `_Builder`
    parser.feed(packet.strip(b"\0 \t\r\n"))
    root: Element = parser.close()
    return root


def _properties(packet: bytes | str, wanted: frozenset[str] = _KEPT_NAMES) -> dict[str, Element]:
    """Return the `wanted` properties of a packet by name, without unknown parts."""
    root, found = _parse(packet), dict[str, Element]()
    for description in [node for rdf in root.iter(_name("rdf:RDF")) for node in rdf]:
        for name, value in description.items():
            if name in wanted:
                found.setdefault(name, _element(name, value))
        for element in description:
            if element.tag in wanted:
                _clean(element)
                found.setdefault(element.tag, element)
    return found


def _clean(element: Element) -> None:
    """Remove what an element has inside of unknown namespaces, such as thumbnails, and sources of
    pixels."""
    def is_kept(name: str) -> bool:
        return name != _SOURCE_TYPE and ("}" not in name or name[1:].partition("}")[0] in _KNOWN)

    element.tail = None
    for name in list(element.keys()):
        if not is_kept(name):
            del element.attrib[name]
    for child in list(element):
        if is_kept(child.tag):
            _clean(child)
        else:
            element.remove(child)


def _of_iptc(data: bytes) -> dict[str, Element]:
    """Return the XMP properties of IPTC data sets, without damaged ones."""
    found, texts, place = dict[str, Element](), dict[int, list[str]](), 0
    while data[place:place + 1] == b"\x1c" and place + 5 <= len(data):
        record, number, size = (data[place + 1], data[place + 2],
                                int.from_bytes(data[place + 3:place + 5], "big"))
        value, place = data[place + 5:place + 5 + size], place + 5 + size
        if record == 2 and number in _IPTC:
            try:
                texts.setdefault(number, []).append(value.decode())
            except UnicodeDecodeError:
                texts.setdefault(number, []).append(value.decode("latin-1"))
    for number, values in texts.items():
        name = _IPTC[number]
        if number == 55 and values[0].isdigit() and len(values[0]) == 8:
            values = [f"{values[0][:4]}-{values[0][4:6]}-{values[0][6:]}"]
        found[_name(name)] = _element(_name(name), *values, form=_LISTS.get(name, ""))
    return found


def _element(name: str, *texts: str, form: str = "") -> Element:
    """Return a property: a text, or an RDF container of the kind `form` with texts."""
    element = Element(name)
    if not form:
        element.text = _printable(texts[0])
        return element
    items = SubElement(element, _name(f"rdf:{form}"))
    language = {f"{{{_XML}}}lang": "x-default"} if form == "Alt" else {}
    for text in texts:
        SubElement(items, _name("rdf:li"), language).text = _printable(text)
    return element


def _printable(text: str) -> str:
    """Return a text without the control characters that XML cannot hold."""
    return "".join(one for one in text if (one >= " " and one not in "\ufffe\uffff")
                   or one in "\t\n\r")


def _packet(properties: Mapping[str, Element]) -> bytes:
    """Return properties as an XMP packet; equal properties give equal bytes."""
    root = Element(_name("x:xmpmeta"))
    description = SubElement(SubElement(root, _name("rdf:RDF")), _name("rdf:Description"),
                             {_name("rdf:about"): ""})
    description.extend(properties[name] for name in sorted(properties))
    text = ElementTree.tostring(root, "unicode")
    return (f'<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>{text}<?xpacket '
            'end="r"?>'.encode())
