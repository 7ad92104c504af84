"""An extension of Python-Markdown for the documentation site: files outside docs/ are named there, not linked."""

from typing import Any
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor


class _Unlink(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            target = link.get("href", "")
            leaves = target.startswith("../") and not target.partition("#")[0].endswith((".md", ".html"))
            if leaves or target.startswith(("../CONTRIBUTING", "../SECURITY", "../benchmarks", "../examples")):
                link.tag = "span"
                del link.attrib["href"]


class SiteLinks(Extension):
    """Removes the links."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Python-Markdown's
        """Register with `md`; after the inline patterns (priority 20), before links are made absolute."""
        md.treeprocessors.register(_Unlink(md), "site_links", 15)


def makeExtension(**options: Any) -> SiteLinks:  # noqa: N802
    """Return the extension, as Python-Markdown asks for it."""
    return SiteLinks(**options)
