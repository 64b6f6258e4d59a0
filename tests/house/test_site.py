"""The site of the documentation, as its build leaves it and as a browser shows it from a folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.browser import CHROMIUM, in_a_browser, on_every_screen

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("index", "tutorial", "how-to/cookbook", "how-to/operate", "reference/cli", "reference/api/headpond")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: no broken link, no page left out."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        # Not --quiet: it hides the warnings from --strict as well.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    """It can be read without a network."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))  # and the page for what is not found
    for page in pages:
        text = page.read_text()
        assert "<p>::</p>" not in text, page.name  # `scripts/docstrings.py` takes them away
        loaded = re.findall(r"<(?:script|link|img)[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", text)
        assert [url for url in loaded if "canonical" not in url] == [], page.name


def test_every_page_leads_on(site: Path) -> None:
    """To the one before and the next, to its source, and to other colours."""
    for page in PAGES[1:]:
        text = (site / f"{page}.html").read_text()
        assert 'class="md-footer__link md-footer__link--prev"' in text
        assert 'class="md-footer__link md-footer__link--next"' in text
        assert f"/edit/main/docs/{page}.md" in text
        switches = re.findall(
            r'<input class="md-option" data-md-color-media="[^"]*" data-md-color-scheme="(\w+)"', text
        )
        assert switches == ["default", "default", "slate"]  # as the system has it, light, dark
        assert "assets/logo.svg" in text


def dumped(folder: Path, url: str, *options: str) -> str:
    """Return a page of the site as a browser has it after some seconds."""
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=8000", "--dump-dom"),
        *(f"--user-data-dir={folder / 'profile'}", *options, url),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


SCRIPT = """
  const scrolls = e => e.closest('.md-typeset__scrollwrap, .md-typeset__table, pre, svg, [hidden]');
  const wide = [...d.querySelectorAll('.md-content *')].filter(e =>
    !scrolls(e) && e.getBoundingClientRect().right > w.innerWidth + 1);
  const heads = [...d.querySelectorAll('thead')].filter(e =>
    !e.textContent.trim() && e.getBoundingClientRect().height > 0);
  document.title = [d.documentElement.scrollWidth <= w.innerWidth, heads.length,
    wide.map(e => e.tagName + '.' + e.className).join()].join('|');"""


@in_a_browser
@on_every_screen
@pytest.mark.parametrize("page", PAGES)
def test_it_fits_the_screen(site: Path, tmp_path: Path, page: str, width: int) -> None:
    """Nothing hangs out but what scrolls of itself, and no table has an empty bar for a head."""
    url = (site / f"{page}.html").as_uri()
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="f" src="{url}" style="width:{width}px;height:900px;border:0"></iframe><script>'
        f"const look = () => {{ const d = f.contentDocument, w = f.contentWindow; {SCRIPT} }};"
        "f.onload = () => setTimeout(look, 1500)</script>"
    )
    options = ("--window-size=1600,1000", "--allow-file-access-from-files")
    shown = dumped(tmp_path, frame.as_uri(), *options)
    assert re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)[0] == "true|0|"


@in_a_browser
def test_the_search_finds_from_a_folder(site: Path, tmp_path: Path) -> None:
    """Without a server, where a browser starts no worker."""
    shown = dumped(tmp_path, f"{(site / 'index.html').as_uri()}?q=quarantined+records")
    found = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown)
    assert any("how-to/quarantine.html?h=" in link for link in found)
