# SPDX-License-Identifier: GPL-2.0-only
"""Check a built site: links, anchors and pictures lead somewhere, and pages load nothing from other hosts."""

import html.parser
import pathlib
import re
import urllib.parse

# Elements that a browser loads something for, and the attribute with its address.
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
         "embed": "src", "object": "data", "link": "href"}  # fmt: skip
IN_CSS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Page(html.parser.HTMLParser):
    """ids: what links may lead to. links: addresses of <a>. loads: addresses of what the page shows or runs."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.twice = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if ident := attrs.get("id"):
            self.twice += [ident] * (ident in self.ids)
            self.ids.add(ident)
        if tag == "a" and attrs.get("href") is not None:
            self.links.append(attrs["href"])
        elif tag in LOADS and attrs.get(LOADS[tag]):
            self.loads.append(attrs[LOADS[tag]])
        self.loads += [a or b for a, b in IN_CSS.findall(attrs.get("style") or "")]


def foreign(url):
    """Whether an address is of a host, and not of a file of the site."""
    return url.startswith("//") or bool(re.match(r"[a-z][a-z0-9+.-]*:", url, re.I)) and not url.startswith("data:")


def check(site):
    """Return what is wrong with the site in a directory, one text for each."""
    site = pathlib.Path(site).resolve()
    pages = {p: Page(p.read_text()) for p in sorted(site.rglob("*.html"))}
    wrong = [] if pages else [f"{site}: there are no pages"]
    for path, page in pages.items():
        name = path.relative_to(site)
        wrong += [f"{name}: two elements have the id {ident}" for ident in page.twice]
        wrong += [f"{name}: loads {url} from another host" for url in page.loads if foreign(url)]
        for url in [*page.links, *page.loads]:
            if not foreign(url) and not url.startswith("data:") and not leads(path, url, pages):
                wrong.append(f"{name}: {url} leads nowhere")
    for path in sorted(site.rglob("*.css")):
        urls = [a or b for a, b in IN_CSS.findall(path.read_text())]
        wrong += [f"{path.relative_to(site)}: loads {url} from another host" for url in urls if foreign(url)]
    return wrong


def leads(path, url, pages):
    target, _, anchor = url.partition("#")
    target = urllib.parse.unquote(target.partition("?")[0])
    if target.startswith("/"):
        return False  # the site need not be at the top of its host
    file = (path.parent / target).resolve() if target else path
    if file.is_dir():
        file /= "index.html"
    if not file.is_file():
        return False
    # "#" alone is the top of a page.
    return not anchor or (file in pages and urllib.parse.unquote(anchor) in pages[file].ids)
