"""The site as `make site` builds it: every link leads somewhere, and nothing is loaded from elsewhere."""

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

if not os.environ.get("SHEAFGOSSIP_SITE"):
    pytest.skip("make site builds what is checked here", allow_module_level=True)
SITE = Path(os.environ["SHEAFGOSSIP_SITE"]).resolve()


class Page(HTMLParser):
    """``links`` are what a reader may follow, ``loads`` what a browser fetches itself, ``anchors`` where links end."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("a", "area"):
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loads += [given[name] for name in ("src", "href", "data", "poster", "srcset") if name in given]


PAGES = {path: Page(path) for path in SITE.rglob("*.html")}


def test_every_link_and_everything_loaded_is_there():
    broken = []
    for path, page in PAGES.items():
        for link in page.links + page.loads:
            if link.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            name, anchor = urldefrag(unquote(link))
            target = (path.parent / name).resolve() if name else path
            there = target.is_file() and target.is_relative_to(SITE)
            if not there or (target in PAGES and anchor not in PAGES[target].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert len(PAGES) > 30
    assert broken == []


def test_nothing_is_loaded_from_elsewhere():
    foreign = [(path, link) for path, page in PAGES.items() for link in page.loads if "//" in link.split("?")[0]]
    styles = [path for path in SITE.rglob("*.css") if "url(http" in path.read_text() or "@import" in path.read_text()]
    assert foreign + styles == []
