# SPDX-License-Identifier: GPL-2.0-only
"""Hooks of MkDocs: entries of the navigation that lead to a part of a page; pages that the site does without."""

import logging
import pathlib

from mkdocs.structure.nav import Link

# MkDocs counts the warnings of this logger: --strict makes them errors.
LOG = logging.getLogger("mkdocs.hooks.itree")


def links(items):
    for item in items:
        yield from [item] if isinstance(item, Link) else links(item.children or [])


def on_nav(nav, config, files):
    for link in links(nav.items):
        if not link.url.startswith("part:"):
            continue
        page, _, anchor = link.url.removeprefix("part:").partition("#")
        file = files.get_file_from_path(page)
        if file is None:
            LOG.warning("mkdocs.yml: '%s' leads to %s, which is no page", link.title, page)
        else:
            link.url = f"{file.url}#{anchor}"
    return nav


def on_post_build(config):
    # A site map wants the address of the site, and 404.html a server that is set up for it.
    for name in ("sitemap.xml", "sitemap.xml.gz", "404.html"):
        (pathlib.Path(config.site_dir) / name).unlink(missing_ok=True)
