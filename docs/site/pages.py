# SPDX-License-Identifier: GPL-2.0-only
"""Gather the pages of the site: the repository's Markdown, its pictures and its man pages.

A forge shows these pages as GitHub's Markdown, whose lists and tables differ from those of MkDocs. Each page is
therefore rendered here, section by section; MkDocs gets headings and HTML, and adds navigation, search and theme.
Pages keep their paths, so that links between them stay as they are.
"""

import html
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import treebuild as tb
from markdown_it import MarkdownIt
from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PICTURES = (".png", ".svg", ".jpg")
MAN_NAME = re.compile(r"[\w.-]+\.[1-8](\.in)?$")
REFERENCE = re.compile(r"\b([a-z][\w.-]*)\(([1-8])\)")


def files_of(root):
    """Paths of the files that git tracks or would add; without git, of all files but those in build/."""
    git = ["git", "-C", root, "ls-files", "-co", "--exclude-standard"]
    res = subprocess.run(git, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    names = res.stdout.splitlines() if res.returncode == 0 else [str(p.relative_to(root)) for p in root.rglob("*")]
    return [n for n in sorted(names) if (root / n).is_file() and not n.startswith(("build/", ".git/", ".github/"))]


def slug(heading):
    """The anchor of a heading, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(tokens):
    """Yield (index of its first token, level, text, anchor) for each heading outside lists and quotations."""
    seen = {}
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0:
            text = tokens[index + 1].content
            anchor = slug(text)
            number = seen[anchor] = seen.get(anchor, -1) + 1
            yield index, int(token.tag[1:]), text, f"{anchor}-{number}" if number else anchor


def url_of(name):
    """The address of a page in the site: with_suffix() would take ".8" of a man page for a suffix."""
    folder, _, base = name.rpartition("/")
    base = "index" if base == "README.md" else base.removesuffix(".md")
    return f"{folder}/{base}.html".lstrip("/")


def made_by(argv, **kwargs):
    """Run a program that makes a page; returns what subprocess.run() does."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **kwargs)
    except FileNotFoundError as err:
        raise tb.BuildError(f"{pathlib.Path(argv[0]).name} is not installed: run `make deps`") from err


def changelog(collection):
    """The changelog of a collection as Markdown, without the anchors and the contents that the site makes itself."""
    with tempfile.NamedTemporaryFile(suffix=".md") as out:
        # The tool stands beside the Python that `make site` runs this with.
        program = pathlib.Path(sys.executable).with_name("antsibull-changelog")
        res = made_by([program, "generate", "--output", out.name, "--output-format", "md"], cwd=collection)
        text = pathlib.Path(out.name).read_text()
    if res.returncode or "\n## " not in text:
        raise tb.BuildError(f"{collection}: antsibull-changelog makes no changelog of it: {res.stderr.strip()}")
    title, _, versions = re.sub(r'<a id="[^"]*"></a>\n', "", text).partition("\n## ")
    return f"{title.splitlines()[0]}\n\n## {versions}"


class Gatherer:
    """The pages of one source tree. problems: texts, each with a file and its line."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.names = files_of(self.root)
        self.problems = []
        self.tokens = {n: MARKDOWN.parse((self.root / n).read_text()) for n in self.names if n.endswith(".md")}
        if "ansible/changelogs/changelog.yaml" in self.names:
            self.tokens["ansible/CHANGELOG.md"] = MARKDOWN.parse(changelog(self.root / "ansible"))
        self.anchors = {n: {anchor for *_, anchor in headings(tokens)} for n, tokens in self.tokens.items()}
        self.manuals = {}  # file: name of its page, as in e4itree.8
        self.described = {}  # (name, section) that a manual describes: its page
        for name in self.names:
            if MAN_NAME.search(name) and ".TH " in (text := (self.root / name).read_text(errors="replace")):
                page = pathlib.Path(name).name.removesuffix(".in")
                self.manuals[name] = page
                title = re.search(r"^\.SH NAME\n(.*?) \\-", text, re.M | re.S)
                for one in title[1].replace("\\", "").split(",") if title else []:
                    self.described[one.strip(), page[-1]] = page

    def problem(self, name, line, text):
        self.problems.append(f"{name}:{line}: {text}")

    def write(self, dest):
        """Write what MkDocs reads into a directory."""
        for name in self.tokens:
            self.put(dest / name, self.page(name))
        for name, page in self.manuals.items():
            self.put(dest / "man" / f"{page}.md", self.manual(name, page))
        for name in self.names:
            if name.endswith(PICTURES) and name.startswith("docs/"):
                (dest / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / name, dest / name)

    @staticmethod
    def put(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def page(self, name):
        """A page: its headings as Markdown, all between them as HTML."""
        tokens, parts, start = self.tokens[name], [], 0
        self.resolve(name, tokens)
        for index, level, text, anchor in headings(tokens):
            parts += [self.html_of(tokens[start:index]), f"{'#' * level} {text} {{: #{anchor} }}"]
            start = index + 3
        return "\n\n".join([*parts, self.html_of(tokens[start:])]) + "\n"

    @staticmethod
    def html_of(tokens):
        tokens = [t for t in tokens if not (t.type == "html_block" and t.content.startswith("<!--"))]
        body = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
        return f"<div>\n{body}</div>" if body else ""

    def resolve(self, name, tokens):
        """Make links and pictures of a page lead to addresses of the site; drop links to files that are no pages."""
        line = 0
        for block in tokens:
            # Cells of a table have no line of their own, but their row has.
            line = block.map[0] + 1 if block.map else line
            kept, dropped, inside = [], 0, False
            for token in block.children or []:
                inside = (inside or token.type == "link_open") and token.type != "link_close"
                if token.type == "link_open":
                    url = self.target(name, line, token.attrs["href"])
                    if url is None:
                        dropped += 1
                        continue
                    token.attrs["href"] = url
                elif token.type == "link_close" and dropped:
                    dropped -= 1
                    continue
                elif token.type == "image":
                    self.picture(name, line, token.attrs["src"])
                elif token.type == "text" and not inside:
                    up = "../" * name.count("/")
                    token = Token("html_inline", "", 0, content=self.refer(html.escape(token.content, False), up))
                kept.append(token)
            if block.children is not None:
                block.children = kept

    def target(self, name, line, href):
        """The address that a link of a page gets; None: the link leads to a file that is no page."""
        if re.match(r"[a-z]+:", href):
            return href
        path, _, anchor = href.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        if (self.root / file / "README.md").is_file():
            path, file = os.path.join(path, "README.md"), os.path.join(file, "README.md")
        if file not in self.tokens:
            if file.startswith("..") or not (self.root / file).exists():
                self.problem(name, line, f"the link to {href} leads nowhere")
            return None
        if anchor and anchor not in self.anchors[file]:
            self.problem(name, line, f"the link to {href} leads nowhere: {file} has no such heading")
        return (url_of(path) if path else "") + (f"#{anchor}" if anchor else "")

    def picture(self, name, line, src):
        file = os.path.normpath(os.path.join(os.path.dirname(name), src))
        if file not in self.names or not file.startswith("docs/") or not file.endswith(PICTURES):
            self.problem(name, line, f"the picture {src} is none of docs/")

    def refer(self, text, up):
        """Link references to our manuals, such as e4itree(8), in HTML that has no links."""

        def link(match):
            page = self.described.get((match[1], match[2]))
            return f'<a href="{up}man/{page}.html">{match[0]}</a>' if page else match[0]

        return REFERENCE.sub(link, text)

    def manual(self, name, page):
        """A man page: each section a heading and the HTML that mandoc makes of it."""
        res = made_by(["mandoc", "-T", "html", "-O", "fragment", self.root / name])
        body = res.stdout.partition('<div class="manual-text">')[2].rpartition("</div>")[0]
        if res.returncode > 2 or '<section class="Sh">' not in body:
            raise tb.BuildError(f"{name}: mandoc makes no manual of it: {res.stderr.strip()}")
        if unfilled := re.search(r"@[A-Z0-9_]+@", body):
            raise tb.BuildError(f"{name}: {unfilled[0]} has no value here: only the line .TH may have such words")
        # The page has its own links to its sections; subsections stand one level below them.
        body = re.sub(r'<a class="permalink" href="#[^"]*">(.*?)</a>', r"\1", body, flags=re.S)
        body = re.sub(r"<(/?)h2\b", r"<\1h3", body)
        body = re.sub(r"<b>([\w.-]+)</b>\(([1-8])\)", r"\1(\2)", body)
        parts = [f"# {page[:-2]}({page[-1]})"]
        sections = re.findall(r'<section class="Sh">\s*<h1 class="Sh" id="([^"]*)">(.*?)</h1>(.*?)</section>\s*'
                              r'(?=<section class="Sh">|$)', body, re.S)  # fmt: skip
        for anchor, title, text in sections:
            parts.append(f"## {' '.join(title.split())} {{: #{anchor} }}")
            parts.append(f'<div class="manual">\n{self.refer(text, "../")}\n</div>')
        return "\n\n".join(parts) + "\n"
