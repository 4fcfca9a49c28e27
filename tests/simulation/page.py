"""Page of one history: processes, service and the others side by side, stepped by hand. One file without a server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.history import Result

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%(title)s</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 1rem; color-scheme: light dark }
#lanes { display: grid; gap: .5rem; grid-auto-columns: minmax(14rem, 1fr); grid-auto-flow: column; overflow-x: auto }
section { border: 1px solid #8888; border-radius: .4rem; padding: .5rem; min-height: 18rem }
h2 { font-size: 1rem; margin: 0 0 .5rem }
p { margin: 0 0 .4rem; overflow-wrap: anywhere; opacity: .65 }
p.now { opacity: 1; outline: 2px solid #07c; border-radius: .2rem }
p.bad { color: #c00; opacity: 1; font-weight: 600 }
time { font-size: .8rem; display: block }
</style>
<h1>%(title)s</h1>
<p style="opacity: 1">%(about)s</p>
<nav><button id="back">Back</button> <button id="next">Next</button>
<label>Step <input id="step" type="range" min="0" value="0"></label> <output id="at" aria-live="polite"></output></nav>
<main id="lanes"></main>
<script type="application/json" id="history">%(history)s</script>
<script>
const events = JSON.parse(document.getElementById("history").textContent);
const lanes = [...new Set(events.map((e) => e.lane))].sort(), shown = 8, find = (id) => document.getElementById(id);
const step = find("step");
step.max = events.length - 1;
const add = (parent, name, text) => {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  return made;
};
function show(index) {
  index = Math.max(0, Math.min(events.length - 1, index));
  step.value = index;
  find("at").textContent = `${index + 1} of ${events.length}, ${events[index].at}`;
  find("lanes").replaceChildren();
  for (const lane of lanes) {
    const place = add(find("lanes"), "section", "");
    add(place, "h2", lane);
    const seen = events.map((e, i) => ({ ...e, i })).filter((e) => e.lane === lane && e.i <= index).slice(-shown);
    for (const event of seen) {
      const line = add(place, "p", event.what);
      line.prepend(Object.assign(document.createElement("time"), { textContent: `${event.at} ${event.who}` }));
      line.className = (event.i === index ? "now " : "") + (event.what.startsWith("LAW BROKEN") ? "bad" : "");
    }
  }
}
find("next").onclick = () => show(+step.value + 1);
find("back").onclick = () => show(+step.value - 1);
step.oninput = () => show(+step.value);
onkeydown = (event) => {
  if (event.target !== step) show(+step.value + (event.key === "ArrowRight") - (event.key === "ArrowLeft"));
};
show(0);
</script>
</html>
"""


def write_page(result: Result, file: Path) -> None:
    """Write the page of a history."""
    faults = ", ".join(f"{count} {name}" for name, count in result.faults.items()) or "none"
    events = [
        {"at": each.when, "who": each.who, "lane": each.who.partition(".")[0], "what": each.what}
        for each in result.happenings
    ]
    values = {
        "title": f"Seed {result.plan.seed}",
        "about": f"{result.hours:.1f} simulated hours, {result.payments} payments. Faults: {faults}. "
        f"Laws broken: {len(result.broken)}. Step with the buttons or the arrow keys.",
        # Nothing in it ends the element that holds it.
        "history": json.dumps(events).replace("<", "\\u003c"),
    }
    file.write_text(_PAGE % values, encoding="utf-8")
