# SPDX-License-Identifier: GPL-2.0-only
"""Who publishes: packaging/publisher.conf."""

import configparser
import dataclasses
import os
import pathlib
import urllib.parse

import treebuild as tb

CONF = tb.REPO / "packaging" / "publisher.conf"


@dataclasses.dataclass(frozen=True)
class Publisher:
    """name and email are of the packages' maintainer; url, of the web server, ends in a slash."""

    name: str
    email: str
    security: str
    url: str

    @property
    def who(self):
        """Name and address as in From: and Maintainer: fields."""
        return f"{self.name} <{self.email}>"

    @property
    def host(self):
        """The build host that packages name, which is not the machine that built them."""
        return urllib.parse.urlsplit(self.url).hostname


def read(path=None):
    """The publisher, from a file, ITREE_PUBLISHER or CONF. Raises BuildError if a setting is missing or invalid."""
    path = pathlib.Path(path or os.environ.get("ITREE_PUBLISHER") or CONF)
    conf = configparser.ConfigParser(interpolation=None)
    try:
        conf.read_string(path.read_text())
        found = Publisher(**conf["publisher"])
    except (OSError, configparser.Error, KeyError, TypeError) as err:
        raise tb.BuildError(f"{path}: {err}: needs a section [publisher] with name, email, security, url") from err
    for field in ("email", "security"):
        if "@" not in getattr(found, field) or set(getattr(found, field)) & set(" <>"):
            raise tb.BuildError(f"{path}: {field} = {getattr(found, field)} is no mail address, as in me@example.org")
    if not found.name or set(found.name) & set("<>@"):
        raise tb.BuildError(f"{path}: name = {found.name}: packages want a name without < > @")
    if not found.host or not found.url.startswith(("https://", "http://")) or not found.url.endswith("/"):
        raise tb.BuildError(f"{path}: url = {found.url} is no address that ends in a slash, as in https://example.org/")
    return found
