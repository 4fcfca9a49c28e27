"""Pages of the site as one text for language models: `llms.txt` lists them, `llms-full.txt` holds them all.

Beside each HTML page lies its Markdown. The API reference is put in from the docstrings.
"""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)\n((?:\n?   .*\n?)*)", re.MULTILINE)
# The first sentence of the first paragraph, behind a command to install something.
SUMMARY = re.compile(
    r"^(?![#|!<>*.:-]|```)(?:`pip[^`]*`[^.]*\.\s)?(\S(?:(?!\n\n).)*?[.:])(?=\s)", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def write(folder: Path, title: str, parts: Mapping[str, Mapping[str, str]]) -> None:
    """Write the pages, given by caption and name; the name may be that of a page in a folder, `reference/values`."""
    index, whole = [f"# {title}", ""], []
    for caption, pages in parts.items():
        index += [f"## {caption}", ""]
        for name, source in pages.items():
            text = DIRECTIVE.sub(_describe, re.sub(r"```\{toctree\}.*?```\n", "", source, flags=re.DOTALL))
            text = re.sub(r"```\{eval-rst\}\n(.*?)```\n", r"\1", text, flags=re.DOTALL)
            (folder / f"{name}.md").write_text(text, "utf-8")
            heading, summary = re.search(r"^# (.*)", text), SUMMARY.search(source)
            about = "" if summary is None else ": " + LINK.sub(r"\1", " ".join(summary[1].rstrip(":").split()))
            index.append(f"- [{name if heading is None else heading[1]}]({name}.md){about}")
            whole.append(text)
        index.append("")
    (folder / "llms.txt").write_text("\n".join(index), "utf-8")
    (folder / "llms-full.txt").write_text("\n".join(whole), "utf-8")


def _describe(directive: re.Match[str]) -> str:
    kind, name, rest = directive.groups()
    module, _, last = name.rpartition(".")
    if kind == "data":
        return f"### {name}\n\n{inspect.cleandoc(re.sub('^ *:.*', '', rest)).strip()}\n\n"
    try:
        found = getattr(importlib.import_module(module), last)
    except ModuleNotFoundError:  # the attribute of a class
        module, _, owner = module.rpartition(".")
        found = getattr(getattr(importlib.import_module(module), owner), last)
    return "".join(_parts(name, found))


def _parts(name: str, found: Any) -> Iterator[str]:
    """Yield the texts of a class with its public members, or of one function."""
    signature = inspect.signature(found) if callable(found) and not inspect.isclass(found) else ""
    yield f"### {name}{signature}\n\n{inspect.getdoc(found) or ''}\n\n"
    if not inspect.isclass(found):
        return
    if issubclass(found, enum.Enum):
        yield f"Values: {', '.join(f'`{each.name}`' for each in found)}\n\n"
    for member, raw in vars(found).items():
        value = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            signature = inspect.signature(value) if inspect.isfunction(value) else ""
            yield f"#### {name.rpartition('.')[2]}.{member}{signature}\n\n{inspect.getdoc(value) or ''}\n\n"
