"""Build of the docs site: `sphinx-build -W --keep-going docs build/docs`, or `nox -s docs`.

The pages are Markdown that reads on GitHub too; only those in `reference/` are made of docstrings. Neither the build
nor a reader's browser loads anything from elsewhere.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import mobilemoney_async

sys.path.insert(0, str(Path(__file__).parent))
import llms

project = "mobilemoney-async"
author = "the mobilemoney-async authors"
copyright = author  # noqa: A001 (Sphinx's name for it)
release = version = mobilemoney_async.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
default_role = "py:obj"
highlight_language = "none"
nitpick_ignore_regex = [
    # Types of other libraries. Their inventories would have to be downloaded.
    (
        r"py:.*",
        r"(anyio|asyncio|collections|contextlib|datetime|decimal|fastapi|httpx|opentelemetry|os|random|respx|socket|starlette|types)\..*",
    ),
    (r"py:.*", r"datetime|timedelta|Decimal|FileDescriptorLike"),
    # In signatures of what users do not construct: a sentinel, type variables, iterators, inner values of the sandbox.
    (r"py:class", r"mobilemoney_async\.client\._Unset|mobilemoney_async\.testing\.\w+\.Ts?|Ts|_asyncio\.Future"),
    (r"py:class", r"mobilemoney_async\.contract\.converter\.T"),
    (r"py:class", r"mobilemoney_async\.payments\.feed\.feed\.(ChangePages|ConsumerChanges)"),
    (r"py:class", r"mobilemoney_async\.sandbox\.(server\.SandboxApp|messages\.(Reply|Request))|SandboxApp"),
]

html_theme = "furo"
html_title = "mobilemoney-async"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Code has a copy button, output has none; of a session only the commands are copied.
copybutton_selector = "div:not(.highlight-none) > div.highlight > pre"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_heading_anchors = 3
myst_enable_extensions = ["tasklist"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attrs fields are described once, in the docstring of their class
napoleon_use_rtype = False

# The side bar. It is here, since GitHub would show a directive in `index.md` as source text.
CONTENTS = {
    "Start": "quickstart postgres-shop access configuration scripts",
    "Take payments": "collections following-payments lookups errors payments books fastapi aiohttp django"
    " data callbacks",
    "Pay out": "disbursements payouts audit workers",
    "Run it": "production operators database servers rate-limits observability platform operations privacy cli"
    " limitations",
    "Test it": "testing testing-your-shop sandbox",
    "Reference and project": "reference/index comparison evidence benchmarks design changelog contributing security",
}

# Pages that stand in for files outside this folder, where GitHub and readers of the code expect them.
ROOT = Path(__file__).parent.parent
STAND_INS = {
    "benchmarks": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}

RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")

# Classes that a client or a sandbox gives to users. Users never construct them, so their signatures are hidden.
GIVEN = {"CallbackSender", "Collections", "Disbursements", "Payments", "Poller", "SwitchBoard", "TransactionPager"}
GIVEN |= {"Dispatcher", "PaymentChange", "Payouts", "Transactions", "Users", "Worker"}


def read_page(page: str, text: str) -> str:
    """Return the text of a page, or of the file that it stands in for, with links to the pages of this site."""
    folder = posixpath.dirname(f"docs/{page}")
    if page in STAND_INS:
        folder, text = posixpath.dirname(STAND_INS[page]), (ROOT / STAND_INS[page]).read_text("utf-8")
    stand_ins = {file: f"docs/{name}.md" for name, file in STAND_INS.items()}

    def aim(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"]({posixpath.relpath(stand_ins.get(file, file), posixpath.dirname(f'docs/{page}'))}{link[2] or ''})"

    return RELATIVE_LINK.sub(aim, text)


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Put in the file that a page stands in for, point links to such pages, and add the side bar."""
    if page in STAND_INS:
        app.env.note_dependency(ROOT / STAND_INS[page])
    source[0] = read_page(page, source[0])
    if page == "index":
        source[0] += "".join(
            f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{pages.replace(' ', chr(10))}\n```\n"
            for caption, pages in CONTENTS.items()
        )


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Write `llms.txt` and `llms-full.txt` beside the site, in the order of the side bar."""
    if error is not None or app.builder.format != "html":
        return
    docs = Path(app.srcdir)
    folder = sorted(path.relative_to(docs).with_suffix("").as_posix() for path in docs.glob("reference/*.md"))
    parts = {
        caption: [page for name in names.split() for page in (folder if name == "reference/index" else [name])]
        for caption, names in CONTENTS.items()
    }
    texts = {
        caption: {page: read_page(page, (docs / f"{page}.md").read_text("utf-8")) for page in pages}
        for caption, pages in parts.items()
    }
    llms.write(Path(app.outdir), project, texts)


def hide_constructor(app: Sphinx, what: str, name: str, *rest: Any) -> tuple[str, None] | None:
    """Leave out the signature of a class that users never construct."""
    return ("", None) if what == "class" and name.rpartition(".")[2] in GIVEN else None


def keep_colons(app: Sphinx, what: str, *rest: Any) -> None:
    """Mark the text of a property or constant as such: napoleon takes the words before a first colon for its type."""
    lines: list[str] = rest[-1]
    if what in {"attribute", "data", "property"} and lines:
        lines[0] = f": {lines[0]}"


def find_by_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Resolve `AsyncClient`, `transactions.page` and the like: docstrings name things as their users do.

    Single backquotes may also hold an argument, a field or a literal. None of them begins with a capital and has a
    small letter. Any other text is taken for a name of ours; if there is no such name, the build fails.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    python = env.domains.python_domain
    named = {entry for entry in python.objects if entry.endswith(f".{target}")}
    # A class that is documented where it is public is also known where it is defined.
    found = {python.objects[entry].node_id: entry for entry in named if not python.objects[entry].aliased}
    if len(found) == 1 and (target[0].isupper() or "." in target):
        (name,) = found.values()
        entry = python.objects[name]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)
    first, *rest = target.split(".")
    looks_like_ours = first[0].isupper() and not first.isupper() and all(map(str.isidentifier, (first, *rest)))
    return None if node["reftype"] != "obj" or looks_like_ours else content


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("missing-reference", find_by_short_name)
    app.connect("build-finished", write_llms)
