"""Small archives whose headers claim much, for tests and as seeds of the fuzzer."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile


def tar_header(name, size, kind=b"0"):
    """Return a header of a tar file that claims `size` bytes, negative ones too."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 1
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (b"\x80" + size.to_bytes(11, "big") if size >= 0 else b"\xff"
                      + (2**88 + size).to_bytes(11, "big"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def npy(shape, claimed=None):
    """Return the beginning of an array of any shape, whose header may claim a length of its own."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(text) if claimed is None else claimed) + text


def npz(start, content=b""):
    """Return an .npz with one array."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lr.npy", start + content)
    return buffer.getvalue()


def claims():
    """Return archives by the ending of their names."""
    kinds = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
             tarfile.GNUTYPE_SPARSE, tarfile.REGTYPE)
    headers = [tar_header("a.png", size, kind) for kind in kinds for size in (3 << 30, 1 << 60, -5)]
    arrays = [npy((1, 8, 8, 3), 2_000_000_000), npy((-1, 8, 8, 3)), npy((1 << 60, 8, 8, 3)),
              npy((1, 1 << 31, 9, 3))]
    return [*((".tar", one + bytes(512)) for one in headers),
            *((".tar.gz", gzip.compress(one)) for one in headers),
            *((".npz", npz(one)) for one in arrays)]


def parquet_dictionary(path, size=100_000_000, rows=4):
    """Write a Parquet file of a few kB, whose rows all are the same picture of `size` zeros."""
    import pyarrow as pa
    from pyarrow import parquet

    pictures = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()),
                                              pa.array([bytes(size)], pa.binary()))
    parquet.write_table(pa.table({"image": pictures}), path, compression="zstd",
                        dictionary_pagesize_limit=1 << 30, store_schema=False)


def parquet_lie(path, size=400_000_000):
    """Write a Parquet file of one picture of `size` zeros, whose metadata claim 1,000 bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    pictures = pa.array([bytes(size)], pa.large_binary())
    parquet.write_table(pa.table({"image": pictures}), path, compression="zstd",
                        use_dictionary=False, write_statistics=False)
    true = _varint(parquet.ParquetFile(path).metadata.row_group(0).total_byte_size)
    content = path.read_bytes()
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, _varint(1000, len(true))))


def _varint(value, length=0):
    """Return a number as Parquet's metadata have it, of at least `length` bytes."""
    found, rest = [], value << 1
    while rest or len(found) < length:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found[:-1], found[-1] & 127])
