"""The Ion hash: the public test suite where it is at hand, and what does not change a hash."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
from amazon.ion import simpleion

from headpond.ion.binary import MARKER, TIMESTAMP
from headpond.ion.hash import ion_hash
from headpond.ion.stream import only_value
from headpond.ion.text_reader import text_values, to_binary
from headpond.ion.write import tagged

SUITE = Path(
    os.environ.get("HEADPOND_ION_HASH_TESTS")
    or Path(__file__).parents[3] / "shared" / "vectors" / "ion-hash-test" / "ion_hash_tests.ion"
)


class Identity:
    """A hash that gives back what it was given."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def digest(self) -> bytes:
        """The data."""
        return self._data


@pytest.mark.slow
@pytest.mark.skipif(
    not SUITE.is_file(),
    reason=f"the public Ion hash test cases are not at {SUITE}; HEADPOND_ION_HASH_TESTS names another place",
)
def test_the_public_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every digest of every case with each of its algorithms, taken from Ion binary."""
    monkeypatch.setattr(simpleion, "c_ext", False)  # the C extension refuses values with many annotations
    source = SUITE.read_bytes()
    cases = list(simpleion.loads(source, single_value=False))
    assert len(cases) == len(list(text_values(source)))
    checks = 0
    for case in cases:
        raw = (
            MARKER + bytes(int(byte) for byte in case["10n"])
            if "10n" in case
            else simpleion.dumps(case["ion"], binary=True)
        )
        value = only_value(raw)
        for algorithm, expected in case["expect"].items():
            base: Any = hashlib.md5 if algorithm == "md5" else Identity
            made: list[bytes] = []

            def watched(data: bytes, base: Any = base, made: list[bytes] = made) -> Any:
                digest = base(data)
                made.append(digest.digest())
                return digest

            ion_hash(raw, value.node, value.symbols, watched)
            names = [step.ion_annotations[0].text for step in expected]
            steps = [bytes(int(byte) for byte in step) for step in expected]
            wanted = [
                step for step, name in zip(steps, names, strict=True) if name in ("digest", "final_digest")
            ]
            assert (made[-1:] if "final_digest" in names else made) == wanted, (algorithm, case)
            checks += 1
    assert checks == 171


def hash_of(datum: bytes) -> bytes:
    return only_value(datum).ion_hash()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("d68a21058b2106", "d68b21068a2105"),  # the order of fields
        ("2105", "23000005"),  # an int longer than needed
        ("710a", "7300000a"),  # so a symbol
        ("443fc00000", "483ff8000000000000"),  # the width of a float
        ("447fc00000", "487ff8000000000000"),  # not a number
        ("487ff8000000000001", "48fff8000000000000"),  # not a number, other bits
        ("40", "4400000000"),  # zero
        ("52c10f", "53c1000f"),  # a coefficient longer than needed
        ("68800fd08181808080", "6a800fd081818080808000"),  # a fraction of a second of no digits
        ("b22101", "b401ff2101"),  # padding
        ("d38a2101", "d68a010f8a2101"),  # padding as a field
        ("8161", "8e8161"),  # a length longer than needed
    ],
)
def test_what_does_not_change_a_hash(one: str, other: str) -> None:
    """The encoding of a value does not matter."""
    start = MARKER + b"\xe9\x81\x83\xd6\x87\xb4\x81a\x81b"
    assert hash_of(start + bytes.fromhex(one)) == hash_of(start + bytes.fromhex(other))


def test_timestamps_are_hashed_as_they_lie_only_where_that_is_their_least_form() -> None:
    """Each part in any number of bytes, in UTC or not, with fractions of any form."""
    rng = random.Random(4)
    texts = [
        "2020-01-02T03:04:05Z",
        "2020-01-02T03:04:05-00:00",
        "2020-01-02T03:04:05.120Z",
        "2020-01-02T03:04:05.9Z",
        "2020-01-02T03:04:05.000Z",
        "0099-01-02T03:04:05Z",
        "2020-01-02T03:04Z",
        "2020-01-02T",
        "2020T",
        "2020-01-02T03:04:05.128+05:30",
        "2020-01-02T03:04:05.00000000000000000128Z",
    ]
    for text in texts:
        whole = only_value(to_binary(text))
        node = whole.node
        bodies = [whole.data[node.body : node.stop]]
        with_zeros = bytearray(bodies[0])
        for _ in range(20):  # numbers with zeros before them say the same
            at = rng.randrange(1, min(8, len(with_zeros)))
            if with_zeros[at - 1] & 0x80:
                bodies.append(bytes(with_zeros[:at] + b"\x00" + with_zeros[at:]))
        for one in bodies:
            datum = MARKER + tagged(TIMESTAMP, one)
            assert only_value(datum).ion_hash() == whole.ion_hash(), (text, one)


def test_what_changes_a_hash() -> None:
    """Types, precision, offsets, nulls and annotations do."""
    texts = ["1", "1.", "1.0", "1.00", "1e0", '"1"', "'1'", "null", "null.int", "null.string", "a::1", "b::1"]
    texts += [
        "[1]",
        "(1)",
        "{a:1}",
        "{a:1,a:1}",
        "0e0",
        "-0e0",
        "0.",
        "-0.",
        "2017T",
        "2017-01T",
        "2017-01-01",
    ]
    texts += ["2017-01-01T00:00Z", "2017-01-01T00:00-00:00", "2017-01-01T00:00:00Z", "2017-01-01T00:00:00.0Z"]
    texts += ["2017-01-01T01:00:00+01:00"]
    assert len({hash_of(to_binary(text)) for text in texts}) == len(texts)
