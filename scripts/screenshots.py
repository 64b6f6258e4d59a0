"""Take the pictures of the documentation, of each page after a real run, with headless Chromium.

    python scripts/screenshots.py FOLDER

A shop's changes go through a local Kinesis and `headpond run` for a minute; a ledger with one forged letter
is verified; a time-line is joined. Each is taken in light and dark.
pngquant, if there is one, makes the files smaller.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.cli.commands.demo import demo_data
from headpond.localkinesis.testing import local_kinesis, put_all

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "headpond"]
SECONDS = 60
STATUSES = ("placed", "paid", "packed", "shipped")
PIPELINE = """[source]
stream = "shop-changes"
format = "dsql"
region = "us-east-1"
endpoint_url = "{endpoint_url}"
start = "TRIM_HORIZON"

[target]
path = "lake"
trigger = "2 seconds"

[tables."public.orders"]
keys = ["order_id"]
columns = {{ order_id = "bigint", customer_id = "bigint", status = "text", total = "numeric(10,2)" }}

[tables."public.customers"]
keys = ["customer_id"]
columns = {{ customer_id = "bigint", name = "text", since = "date" }}

[tables."public.payments"]
keys = ["payment_id"]
columns = {{ payment_id = "bigint", order_id = "bigint", amount = "numeric(10,2)" }}
"""
SIZES = {"status": 1180, "verify": 850, "join": 715}
"""Page → the height of its picture."""


def changes() -> Iterator[bytes]:
    """Yield a shop's changes without end; few have a date that is none, or a table without an entry."""
    draw = random.Random(7)
    kinds = ("coupons", "new", "customers", "payments", "orders")
    for number in itertools.count(1):
        order = draw.randint(1, 2_000 + number // 4)
        (table,) = draw.choices(kinds, (2, 3, 200, 200, 600))
        rows: dict[str, dict[str, Any]] = {
            "coupons": {"code": f"SPRING{number}", "order_id": order},
            "new": {"customer_id": order, "name": "Ada", "since": "soon"},
            "customers": {"customer_id": order, "name": "Ada", "since": 20_574},
            "payments": {"payment_id": number, "order_id": order, "amount": f"{number % 90}.50"},
            "orders": {"order_id": order, "customer_id": 7, "status": STATUSES[number % 4], "total": "19.90"},
        }
        row = rows[table]
        table = table.replace("new", "customers")
        now = time.time_ns()
        source = {"version": "1.0", "ts_ns": now, "txId": f"tx{number}", "schema": "public", "table": table}
        source |= {"db": "postgres", "cluster": "shop"}
        yield json.dumps({"type": "full", "op": "u", "after": row, "source": source, "ts_ns": now}).encode()


def status(folder: Path) -> str:
    """Run a pipeline for a minute, and make its page while it runs."""
    with local_kinesis("shop-changes", shards=4) as kinesis:
        (folder / "shop.toml").write_text(PIPELINE.format(endpoint_url=kinesis.endpoint_url))
        made, client = changes(), kinesis.client()
        with (folder / "run.log").open("wb") as log:
            run = subprocess.Popen([*COMMAND, "run", "shop.toml"], cwd=folder, stdout=log, stderr=log)
        try:
            for second in range(SECONDS):
                began = time.monotonic()
                count = int(700 + 500 * math.sin(second / 7) + random.uniform(-80, 80))
                records = enumerate(itertools.islice(made, count))
                put_all(client, "shop-changes", ((str(number), data) for number, data in records))
                time.sleep(max(0.0, 1 - (time.monotonic() - began)))
            command = [*COMMAND, "status", "shop.toml", "--html", "page.html"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(120)
    return (folder / "page.html").read_text()


def verify(folder: Path) -> str:
    """Verify a ledger's records in which one letter was changed."""
    records: list[Any] = list(demo_data()["ledger"])
    at, forged = demo_data()["forged"]
    records[at] = forged
    (folder / "journal.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    command = [*COMMAND, "verify", "journal.jsonl", "--html", "page.html"]
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    return (folder / "page.html").read_text()


def join(folder: Path) -> str:
    """Join a time-line of the examples."""
    line = ROOT / "examples" / "joins" / "clicks-and-purchases.json"
    command = [*COMMAND, "join", "play", str(line), "--html", "page.html"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return (folder / "page.html").read_text()


def take(browser: str, page: str, height: int, out: Path, *, dark: bool) -> None:
    """Write a page's picture."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page)
        scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [
            f"--user-data-dir={folder}/profile",
            f"--window-size=1060,{height}",
            f"--screenshot={out}",
            *scheme,
            file.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    if quant := shutil.which("pngquant"):
        command = [quant, "--force", "--strip", "--speed", "1", "--output", str(out), "64", str(out)]
        subprocess.run(command, check=True)


def main() -> None:
    """Take all of them."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("There is no Chromium: on Debian, `apt install chromium`.")
    out = Path(sys.argv[1])
    names = sys.argv[2:] or list(SIZES)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="shop-") as folder:
            page: str = {"status": status, "verify": verify, "join": join}[name](Path(folder))
        for scheme in ("light", "dark"):
            file = out / f"{name}-{scheme}.png"
            take(browser, page, SIZES[name], file, dark=scheme == "dark")
            print(f"{datetime.now(UTC):%H:%M:%S} {file} {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
