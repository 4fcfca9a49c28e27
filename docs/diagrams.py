"""Draws the diagrams in `images/`: `python docs/diagrams.py` writes all of them.

They are checked in, so that GitHub shows them too. A test compares them with the output of this file and with the
tables of the code. Each has its own background, since a picture does not know the theme of its page.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parent / "images"

STYLE = """
  text { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1b2733 }
  .small { font-size: 13px; fill: #45566a }
  .head { font-weight: 600 }
  .page { fill: #ffffff }
  .group { fill: #f3f6f9; stroke: #c5d0dc }
  .box { fill: #ffffff; stroke: #45566a; stroke-width: 1.5 }
  .good { fill: #e3f4e8; stroke: #22753f }
  .bad { fill: #fbe9e7; stroke: #a33a2a }
  .open { fill: #fdf3d9; stroke: #8a6100 }
  .line { fill: none; stroke: #45566a; stroke-width: 1.5; marker-end: url(#head) }
  .tip { fill: #45566a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #a9b8c8 }
    .page { fill: #131a22 }
    .group { fill: #1b2530; stroke: #3a4a5c }
    .box { fill: #131a22; stroke: #a9b8c8 }
    .good { fill: #12331f; stroke: #5fc083 }
    .bad { fill: #3d1d18; stroke: #e58a7b }
    .open { fill: #3a2d0c; stroke: #d9ad4a }
    .line { stroke: #a9b8c8 }
    .tip { fill: #a9b8c8 }
  }
"""

HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
)


def rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle with round corners."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'


def text(kind: str, x: float, y: float, line: str, anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(line)}</text>'


class Text(NamedTuple):
    """Lines of small text."""

    x: float
    y: float
    lines: Sequence[str]

    def draw(self) -> Iterator[str]:
        for number, line in enumerate(self.lines):
            yield text("small", self.x, self.y + 17 * number, line)


class Box(NamedTuple):
    """A rectangle with lines of text, the first one bold; `x` and `y` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    lines: Sequence[str]
    kind: str = "box"

    def draw(self) -> Iterator[str]:
        middle, first = self.x + self.width / 2, self.y + self.height / 2 + 5 - 9 * (len(self.lines) - 1)
        yield rectangle(self.kind, self.x, self.y, self.width, self.height)
        for number, line in enumerate(self.lines):
            yield text("small" if number else "head", middle, first + 18 * number, line, anchor="middle")


class Group(NamedTuple):
    """A frame behind a group of boxes, with its name in the upper left corner."""

    x: float
    y: float
    width: float
    height: float
    name: str

    def draw(self) -> Iterator[str]:
        yield rectangle("group", self.x, self.y, self.width, self.height)
        yield text("small", self.x + 12, self.y + 20, self.name)


class Arrow(NamedTuple):
    """A line through points with a tip at its end, and lines of text that begin at `at`.

    `moves` are the transitions that it shows.
    """

    points: Sequence[tuple[float, float]]
    lines: Sequence[str] = ()
    at: tuple[float, float] = (0, 0)
    moves: Sequence[tuple[str, str]] = ()

    def draw(self) -> Iterator[str]:
        path = " L".join(f"{x:g} {y:g}" for x, y in self.points)
        yield f'<path class="line" d="M{path}"/>'
        yield from Text(*self.at, self.lines).draw()


class Diagram(NamedTuple):
    """One picture."""

    width: int
    height: int
    title: str
    parts: Sequence[Box | Group | Arrow | Text]

    def draw(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            HEAD,
            rectangle("page", 0, 0, self.width, self.height),
            *(line for part in self.parts for line in part.draw()),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def down(x: float, start: float, end: float, *lines: str, moves: Sequence[tuple[str, str]] = ()) -> Arrow:
    """Return an arrow straight down (or up), its text to the right."""
    at = (x + 10, (start + end) / 2 + 5 - 8.5 * (len(lines) - 1))
    return Arrow([(x, start), (x, end)], lines, at, moves=moves)


RECORD = Diagram(
    860,
    632,
    "The states of a payment's record in the store",
    [
        Group(16, 96, 180, 394, "it does not exist"),
        Group(300, 96, 204, 520, "not known yet"),
        Group(664, 96, 180, 520, "it exists"),
        Box(590, 26, 100, 40, ["QUEUED"], "open"),
        Box(738, 26, 112, 40, ["CANCELLED"], "bad"),
        Box(30, 136, 152, 44, ["NOT_SENT"], "bad"),
        Box(30, 228, 152, 44, ["REFUSED"], "bad"),
        Box(30, 424, 152, 44, ["RELEASED"], "bad"),
        Box(316, 182, 152, 44, ["SENDING"], "open"),
        Box(316, 368, 152, 44, ["UNKNOWN"], "open"),
        Box(316, 556, 152, 44, ["ABSENT"], "open"),
        Box(674, 182, 160, 44, ["ACKNOWLEDGED"], "good"),
        Box(674, 556, 160, 44, ["FINAL"], "good"),
        Arrow([(450, 28), (450, 180)], ["create: recorded", "before it is sent"], (460, 46)),
        Arrow([(640, 2), (640, 24)], ["enqueue"], (650, 16)),
        Arrow([(692, 46), (736, 46)], ["cancel"], (694, 40), moves=[("QUEUED", "CANCELLED")]),
        Arrow([(620, 68), (620, 192), (470, 192)], ["dispatcher"], (538, 184), moves=[("QUEUED", "SENDING")]),
        Arrow([(316, 196), (184, 160)], ["provably", "not sent"], (214, 136), moves=[("SENDING", "NOT_SENT")]),
        Arrow([(316, 216), (184, 248)], ["the service", "said no"], (210, 264), moves=[("SENDING", "REFUSED")]),
        Arrow([(470, 214), (672, 214)], ["answer"], (556, 232), moves=[("SENDING", "ACKNOWLEDGED")]),
        down(370, 228, 366, "no usable answer,", "or its process", "died", moves=[("SENDING", "UNKNOWN")]),
        down(
            370,
            414,
            554,
            "two full listings",
            "after the grace",
            "period do not",
            "show it",
            moves=[("UNKNOWN", "ABSENT")],
        ),
        Arrow(
            [(470, 390), (706, 390), (706, 228)],
            ["found in the list,", "or identified by", "an operator"],
            (516, 346),
            moves=[("UNKNOWN", "ACKNOWLEDGED")],
        ),
        Arrow([(470, 578), (590, 578), (590, 392)], ["the same"], (516, 570), moves=[("ABSENT", "ACKNOWLEDGED")]),
        Arrow(
            [(316, 398), (184, 438)],
            ["an operator", "confirms its", "absence"],
            (204, 352),
            moves=[("UNKNOWN", "RELEASED")],
        ),
        Arrow([(316, 578), (106, 578), (106, 470)], ["the same"], (222, 570), moves=[("ABSENT", "RELEASED")]),
        Arrow(
            [(60, 96), (60, 60), (420, 60), (420, 180)],
            ["create again with the same key"],
            (72, 52),
            moves=[("NOT_SENT", "SENDING"), ("REFUSED", "SENDING"), ("RELEASED", "SENDING")],
        ),
        down(764, 228, 554, "its final", "state was", "seen", moves=[("ACKNOWLEDGED", "FINAL")]),
    ],
)


def payment(x: float, kind: str, first: str, ends: Sequence[tuple[str, str, str]]) -> Iterator[Box | Group | Arrow]:
    """Draw one type of payment: its first state, and each final state with its meaning."""
    yield Group(x, 16, 352, 316, kind)
    yield Arrow([(x + 90, 44), (x + 90, 72)], ["accepted"], (x + 100, 60))
    yield Box(x + 16, 74, 148, 44, [first], "open")
    for number, (state, meaning, look) in enumerate(ends):
        y = 142 + 62 * number
        yield Arrow([(x + 56, 120), (x + 56, y + 22), (x + 134, y + 22)], moves=[(first, state)])
        yield Box(x + 136, y, 204, 48, [state, meaning], look)


PAYMENT = Diagram(
    752,
    348,
    "The states of a collection and of a disbursement",
    [
        *payment(
            16,
            "collection",
            "PENDING",
            [
                ("SUCCESS", "paid", "good"),
                ("FAILED", "failed or was rejected", "bad"),
                ("TIMEOUT", "the prompt expired", "bad"),
            ],
        ),
        *payment(
            384,
            "disbursement",
            "PROCESSING",
            [
                ("SUCCESS", "sent", "good"),
                ("FAILED", "failed", "bad"),
                ("INSUFFICIENT_FUNDS", "not enough balance", "bad"),
            ],
        ),
    ],
)

CALL = Diagram(
    640,
    760,
    "One call, from method to wire and back",
    [
        Box(40, 20, 260, 48, ["client.collections.create(…)", "your task"]),
        down(170, 70, 98),
        Box(40, 100, 260, 48, ["arguments", "normalised, or InvalidRequest"]),
        down(170, 150, 178),
        Box(40, 180, 260, 48, ["key (with a store)", "made already? Then nothing is sent"]),
        down(170, 230, 278),
        Box(40, 280, 260, 48, ["token", "one login for all tasks"]),
        down(170, 330, 358),
        Box(40, 360, 260, 48, ["rate limiter", "a place in the lane"]),
        down(170, 410, 438),
        Box(40, 440, 260, 48, ["record (with a store)", "on disk before the socket"]),
        down(170, 490, 518),
        Box(40, 520, 260, 48, ["wire", "one attempt, at most timeout seconds"]),
        down(170, 570, 638, "HTTPS"),
        Box(40, 640, 560, 48, ["the service", "everything above this line runs in your process"], "open"),
        Arrow([(470, 638), (470, 570)]),
        Box(340, 520, 260, 48, ["read", "the body first, then the status"]),
        Arrow([(470, 518), (470, 490)]),
        Box(340, 424, 260, 64, ["record (with a store)", "the result, also if the", "caller was cancelled"]),
        Arrow([(470, 422), (470, 390)]),
        Box(340, 312, 260, 76, ["decide", "by effect and place of the failure:", "a table (calls/retry.py)"]),
        Arrow(
            [(470, 310), (470, 290), (320, 290), (320, 304), (302, 304)],
            ["retry, if it is safe: provably", "not sent, rejected before it was", "processed, or only a read"],
            (334, 238),
        ),
        Arrow(
            [(570, 310), (570, 70)],
            [
                "Acknowledgement, or",
                "an error that says",
                "if money may have",
                "moved, such as",
                "OutcomeUnknown",
            ],
            (388, 102),
        ),
        Box(340, 20, 260, 48, ["answer", "your task"]),
        Text(
            40,
            716,
            [
                "The deadline bounds all of it: login, waiting, attempts and pauses.",
                "A create that may have reached the service is never sent again.",
            ],
        ),
    ],
)


def layer(number: int, y: float, parts: str, content: str) -> Iterator[Box | Text]:
    """Draw one layer of the package."""
    yield Box(56, y, 400, 50, [parts, content])
    yield Text(24, y + 30, [f"{number}"])


LAYERS = Diagram(
    660,
    816,
    "The layers of the package: each imports only from layers below it",
    [
        *layer(12, 20, "cli · testing", "the command line; fixtures for your tests"),
        *layer(11, 84, "contrib", "FastAPI, OpenTelemetry, any framework"),
        *layer(10, 148, "client · merchants", "connects the parts, for one account or for many"),
        *layer(9, 212, "sharing", "shared by processes through the database"),
        *layer(8, 276, "payments", "idempotent creates, the store, reconciliation"),
        *layer(7, 340, "polling", "the poller"),
        *layer(6, 404, "database", "engine, schema, clock, leases, encryption"),
        *layer(5, 468, "resources", "the merchant's calls"),
        *layer(4, 532, "callbacks · configuration", "hints from callbacks, profiles"),
        *layer(3, 596, "calls", "one call, from method to wire and back"),
        *layer(2, 660, "contract", "the service's contract, as data"),
        *layer(
            1,
            724,
            "errors · values · events · redaction",
            "arithmetic · tracebacks · tasks; used by all others",
        ),
        Box(
            492,
            212,
            148,
            562,
            [
                "sandbox",
                "the service, written",
                "a second time",
                "from its contract",
                "",
                "shares no code",
                "with the rest",
            ],
            "open",
        ),
        Arrow([(458, 45), (566, 45), (566, 210)], ["uses"], (576, 130)),
        Text(56, 800, ["Imports point down only; a test checks all of them."]),
    ],
)

DIAGRAMS = {"record-states": RECORD, "payment-states": PAYMENT, "one-call": CALL, "layers": LAYERS}


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(diagram.draw(), "utf-8")
