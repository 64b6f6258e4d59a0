"""Synthetic QLDB stream records: revisions of some tables and their blocks, hashes computed."""

from __future__ import annotations

import base64
import hashlib
import random
from dataclasses import dataclass

from headpond.ion.stream import only_value
from headpond.ion.text_reader import to_binary
from headpond.qldb.hash import dot, merkle_root

ARN = "arn:aws:qldb:us-east-1:123456789012:stream/exampleLedger/IiPT4brpZCqCq3f4MTHbYy"
STRAND = "ElYL30RGoqrFCbbaQn3K6m"
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
CITIES = ["Seattle", "Tacoma", "Olympia", "Zürich", "Bellevue", "Port Townsend", "Walla Walla"]


@dataclass(frozen=True)
class Records:
    revisions: list[bytes]
    blocks: list[bytes]


def identifier(rng: random.Random) -> str:
    return "".join(rng.choices(ALPHABET, k=22))


def blob(raw: bytes) -> str:
    return f"{{{{{base64.b64encode(raw).decode()}}}}}"


def vehicle(rng: random.Random) -> str:
    return (
        f'{{VIN:"{"".join(rng.choices(ALPHABET, k=17))}",LicensePlateNumber:"LEWIS{rng.randrange(10**4)}",'
        f'State:"WA",City:"{rng.choice(CITIES)}",PendingPenaltyTicketAmount:{rng.randrange(10**5) / 100:.2f},'
        f"ValidFromDate:20{rng.randrange(10, 20)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02},"
        f"ValidToDate:20{rng.randrange(20, 30)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02},"
        f'Owners:{{PrimaryOwner:{{PersonId:"{identifier(rng)}"}},SecondaryOwners:[]}}}}'
    )


def person(rng: random.Random) -> str:
    return (
        f'{{FirstName:"Raul{rng.randrange(100)}",LastName:"Lewis",DOB:19{rng.randrange(40, 99)}-08-19,'
        f'GovId:"LEWISR{rng.randrange(10**6)}",GovIdType:"Driver License",'
        f'Address:"{rng.randrange(2000)} Pointe Lane, Suite {rng.randrange(100)}, {rng.choice(CITIES)}, WA"}}'
    )


TABLES = {"VehicleRegistration": vehicle, "Person": person}


def hash_of(text: str) -> bytes:
    return only_value(to_binary(text)).ion_hash()


def records(count: int, seed: int = 1) -> Records:
    """Blocks of one to three revisions, until there are `count` revisions."""
    rng = random.Random(seed)
    table_ids = {name: identifier(rng) for name in TABLES}
    revisions: list[bytes] = []
    blocks: list[bytes] = []
    previous = hashlib.sha256(b"before").digest()
    sequence_no = 60_000
    while len(revisions) < count:
        sequence_no += 1
        tx_id, documents, summaries, statements = identifier(rng), [], [], []
        address = f'{{strandId:"{STRAND}",sequenceNo:{sequence_no}}}'
        time = f"2019-09-18T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        for number in range(rng.choice((1, 1, 2, 3))):
            name = rng.choice(list(TABLES))
            document_id, data = identifier(rng), TABLES[name](rng)
            metadata = (
                f'{{id:"{document_id}",version:{rng.randrange(40)},txTime:{time}.{rng.randrange(1000):03}Z,'
                f'txId:"{tx_id}"}}'
            )
            digest = dot(hash_of(metadata), hash_of(data))
            revisions.append(
                to_binary(
                    f'{{qldbStreamArn:"{ARN}",recordType:"REVISION_DETAILS",payload:{{tableInfo:{{tableName:"{name}",'
                    f'tableId:"{table_ids[name]}"}},revision:{{blockAddress:{address},hash:{blob(digest)},'
                    f"data:{data},metadata:{metadata}}}}}}}"
                )
            )
            statement = f"INSERT INTO {name} ?"
            shown = blob(hash_of(f'"{statement}"'))
            statements.append(
                f'{{statement:"{statement}",startTime:{time}.5{number}7Z,statementDigest:{shown}}}'
            )
            documents.append(
                f'\'{document_id}\':{{tableName:"{name}",tableId:"{table_ids[name]}",statements:[{number}]}}'
            )
            summaries.append((digest, document_id))
        info = f"{{statements:[{','.join(statements)}],documents:{{{','.join(documents)}}}}}"
        entries = [
            hashlib.sha256(rng.randbytes(8)).digest(),
            merkle_root([digest for digest, _ in summaries]),
            hashlib.sha256(rng.randbytes(8)).digest(),
            hash_of(info),
        ]
        block_hash = dot(merkle_root(entries), previous)
        shown = ",".join(f'{{hash:{blob(digest)},documentId:"{document}"}}' for digest, document in summaries)
        blocks.append(
            to_binary(
                f'{{qldbStreamArn:"{ARN}",recordType:"BLOCK_SUMMARY",payload:{{blockAddress:{address},'
                f'transactionId:"{tx_id}",blockTimestamp:{time}.601000001Z,blockHash:{blob(block_hash)},'
                f"entriesHash:{blob(merkle_root(entries))},previousBlockHash:{blob(previous)},"
                f"entriesHashList:[{','.join(map(blob, entries))}],transactionInfo:{info},"
                f"revisionSummaries:[{shown}]}}}}"
            )
        )
        previous = block_hash
    return Records(revisions, blocks)
