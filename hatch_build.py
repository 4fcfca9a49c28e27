"""Metadata of the build: README as an index of packages shows it, where links into the repository lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def describe(readme: str, source: str | None) -> str:
    """Return README with links into the repository at `source`, or, until it has an address, with their texts alone."""

    def lead(link: re.Match[str]) -> str:
        kind, text, target = link.groups()
        if source is None:
            return "" if kind else text
        return f"{kind}[{text}]({source.rstrip('/')}/{'raw' if kind else 'blob'}/main/{target})"

    return RELATIVE.sub(lead, readme)


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml calls dynamic."""
        text = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(text, source)}
