"""Deletion vectors: which rows of a file are gone, without writing the file again.

::

    deletion_vector_<uuid>.bin   01 │ size (big-endian) bitmap CRC-32 (big-endian) │ size bitmap CRC-32 │ …
    bitmap                       1681511377 (little-endian) │ Roaring bitmap of row numbers, 64 bit, portable

The bitmaps of one commit are in one file; the action that adds a file names its place there. Source: Delta's
protocol, "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap64

from headpond.core.arrow import distinct
from headpond.lake.engine.folder import Folder

Positions = np.ndarray[Any, np.dtype[np.int64]]

_MAGIC = 1_681_511_377
_UUID_TEXT = 20
_OURS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_OURS, _Z85), bytes.maketrans(_Z85, _OURS)

NONE: Positions = np.empty(0, np.int64)


def path_of(vector: Mapping[str, Any]) -> str | None:
    """Return the file that a vector is in, relative to the table's folder; None for one within the log."""
    if vector["storageType"] != "u":
        return None
    text = vector["pathOrInlineDv"]
    name = uuid.UUID(bytes=base64.b85decode(text[-_UUID_TEXT:].encode().translate(_FROM_Z85)))
    folder = text[:-_UUID_TEXT]
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"


def read(folder: Folder, vector: Mapping[str, Any] | None) -> Positions:
    """Return the row numbers that a vector has, in order."""
    if vector is None:
        return NONE
    size, path = int(vector["sizeInBytes"]), path_of(vector)
    if vector["storageType"] == "i":
        data = base64.b85decode(vector["pathOrInlineDv"].encode().translate(_FROM_Z85))[:size]
    elif path is not None:
        content = folder.read(path) or b""
        begin = int(vector.get("offset") or 0) + 4
        data = content[begin : begin + size]
        if content[begin + size : begin + size + 4] != struct.pack(">I", zlib.crc32(data)):
            raise folder.damaged(path, "lacks a deletion vector, or its checksum does not fit")
    else:
        raise folder.damaged(str(vector["pathOrInlineDv"]), "lies outside the table's folder")
    if len(data) != size or data[:4] != struct.pack("<I", _MAGIC):
        raise folder.damaged(path or "the log", f"has a deletion vector that begins with {data[:4].hex()}")
    return np.array(BitMap64.deserialize(data[4:]).to_array(), np.int64)


def write(folder: Folder, gone: Sequence[Positions]) -> tuple[str, list[dict[str, Any]]]:
    """Write vectors of these row numbers into one file.

    Returns:
        The file's path, and for each vector what an `add` action says of it.
    """
    name = uuid.uuid4()
    text = base64.b85encode(name.bytes).translate(_TO_Z85).decode()
    content, vectors = bytearray(b"\x01"), []
    for rows in gone:
        data = struct.pack("<I", _MAGIC) + BitMap64(rows.tolist()).serialize()
        vectors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": text,
                "offset": len(content),
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    path = f"deletion_vector_{name}.bin"
    folder.write(path, bytes(content))
    return path, vectors


def among(positions: Positions, rows: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are among positions."""
    at = np.searchsorted(positions, rows)
    found = np.zeros(len(rows), bool)
    inside = at < len(positions)
    found[inside] = positions[at[inside]] == rows[inside]
    return found


def union(positions: Positions, others: Positions) -> Positions:
    """Return the positions of both, each once, in order."""
    return distinct(np.concatenate([positions, others]))
