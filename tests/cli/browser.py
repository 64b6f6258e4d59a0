"""Pages in a headless Chromium, as a person sees them: what hangs out of the window, and pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = '</title><script>document.title = "taken"</script><img src=x onerror=alert(1)>'

in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine; Debian's package is `chromium`"
)
on_every_screen = pytest.mark.parametrize("width", [390, 800, 1440])


def browse(folder: Path, page: str, *options: str) -> str:
    """Show a page in a browser without a screen, and return the document as it ended."""
    assert CHROMIUM is not None
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND"),
            f"--user-data-dir={folder / 'profile'}",
            *options,
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


_MEASURE = """<script>onload = () => {
  const wide = [...document.querySelectorAll('main *')].filter(e =>
    !e.closest('.scroll table, .scroll pre, svg *') && e.getBoundingClientRect().right > innerWidth + 0.5);
  const plots = [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width);
  const empty = plots.filter(s => ![...s.querySelectorAll('rect, circle, path')].some(
    e => e.getBoundingClientRect().width > 0.5 && e.getBoundingClientRect().height > 0.5));
  document.title = [document.documentElement.scrollWidth, innerWidth, plots.length, empty.length,
    wide.map(e => e.tagName + '.' + e.className).join()].join('|');
};</script>"""


def measured(folder: Path, page: str, width: int) -> tuple[int, int]:
    """Assert that a page fits a window of that width; return its pictures and the empty ones, counted."""
    # The pages allow no script: one that measures is let in for the test, and writes into the title.
    # Chromium's own window is at least 500 px wide: a frame stands for the phone.
    page = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    (folder / "inner.html").write_text(page.replace("</body>", f"{_MEASURE}</body>"), encoding="utf-8")
    frame = (
        f'<iframe id="f" src="inner.html" style="width:{width}px;height:800px;border:0"></iframe>'
        "<script>const copy = () => { document.title = f.contentDocument.title };"
        "f.onload = () => setTimeout(copy, 200)</script>"
    )
    shown = browse(
        folder, frame, "--window-size=1600,900", "--allow-file-access-from-files",
        "--virtual-time-budget=3000", "--dump-dom",
    )  # fmt: skip
    title = re.findall(r"<title>(.*?)</title>", shown)[0]
    whole, window, plots, empty, hanging = title.split("|")
    assert (int(whole), int(window), hanging) == (width, width, "")
    return int(plots), int(empty)


def assert_light_and_dark_differ(folder: Path, page: str) -> None:
    """Assert that a picture comes out in both schemes."""
    light, dark = folder / "light.png", folder / "dark.png"
    browse(folder, page, f"--screenshot={light}")
    scheme = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    browse(folder, page, f"--screenshot={dark}", *scheme)
    assert light.read_bytes() != dark.read_bytes()


def pages_printed(folder: Path, page: str) -> int:
    """Print a page, and return how many sheets it takes."""
    out = folder / "page.pdf"
    browse(folder, page, f"--print-to-pdf={out}")
    assert out.read_bytes().startswith(b"%PDF")
    return len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
