"""The site is built strictly and stands by itself: no dead link, no page left out, nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import DOCS, ROOT

CONFIG = ROOT / "zensical.toml"


class Links(HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.hrefs.append(found["href"])
        elif tag in ("script", "img", "iframe") and "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(found["href"])


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a folder with docs/ and the configuration into site/ there."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def copied(folder: Path) -> Path:
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copied(tmp_path_factory.mktemp("site"))
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def navigated(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else navigated(target)


def test_each_page_is_in_the_navigation_and_the_navigation_has_no_other() -> None:
    nav = list(navigated(tomllib.loads(CONFIG.read_text())["project"]["nav"]))

    assert sorted(nav) == sorted(path.name for path in DOCS.glob("*.md")), "correct `nav` in zensical.toml"


def test_each_page_is_built_with_its_text(site: Path) -> None:
    for page in DOCS.glob("*.md"):
        built = site / ("" if page.stem == "index" else page.stem) / "index.html"
        title = re.search(r"^# (.+)$", page.read_text(), re.M)
        assert title is not None
        assert title[1].replace("`", "") in built.read_text(), page.name


def test_no_link_is_dead_and_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    dead = []
    for page, links in pages.items():
        assert [src for src in links.loaded if urlsplit(src).netloc] == [], page
        for href in links.hrefs:
            parts = urlsplit(href)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (parts.fragment and parts.fragment not in pages[target].ids):
                dead.append(f"{page.relative_to(site)}: {href}")
    assert len(pages) > 15
    assert dead == []


def test_dead_links_end_the_build_and_are_all_named(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    with open(folder / "docs" / "glossary.md", "a") as page:
        page.write("\n[one](nowhere.md) and [two](tutorial.md#nowhere)\n")

    done = build(folder)

    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "page does not exist" in told
    assert "anchor does not exist" in told
