"""What is wrong with a built site: links and anchors that lead nowhere, and what a browser would fetch from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

__all__ = ["problems"]

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src",
           "object": "data", "link": "href"}  # fmt: skip


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it fetches."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors, self.links, self.fetched = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchors and addresses of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHED and FETCHED[tag] in values:
            self.fetched.append(values[FETCHED[tag]])
        if "srcset" in values:
            self.fetched += [part.split()[0] for part in values["srcset"].split(",") if part.strip()]
        self.fetched += re.findall(r"url\(['\"]?([^'\")]+)", values.get("style", ""))


def problems(site: Path) -> list[str]:
    """One line for each thing that is wrong."""
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        here = file.relative_to(site)
        found += [f"{here}: fetches {address}" for address in page.fetched if _is_elsewhere(address)]
        for address in dict.fromkeys((*page.links, *page.fetched)):
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            path, anchor = urldefrag(address)
            linked = (file.parent / unquote(path)).resolve() if path else file
            if linked.is_dir():
                linked = linked / "index.html"
            if file.name == "404.html" and path.startswith("/"):  # the server's own page, with addresses from its root
                linked = site / path.lstrip("/")
            if not linked.exists():
                found.append(f"{here}: {address} leads to no file")
            elif anchor and linked in pages and unquote(anchor) not in pages[linked].anchors:
                found.append(f"{here}: {address} leads to no anchor")
        text = re.sub(r"<[^>]+>", "", file.read_text(encoding="utf-8"))
        found += [f"{here}: not replaced: {line}" for line in text.splitlines() if line.startswith("::: ")]
    for sheet in sorted(site.rglob("*.css")):
        used = re.findall(r"(?:url\(|@import\s+)['\"]?(https?:|//)[^'\")]*", sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.relative_to(site)}: fetches {address}" for address in used]
    return found


def _is_elsewhere(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https", "ws", "wss", "ftp")
