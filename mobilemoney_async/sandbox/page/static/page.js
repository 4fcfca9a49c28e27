"use strict";
// The parts that HTML and htmx cannot do: copying, clearing a sent PIN, keeping the focus near an answered prompt, unfolding
// parts where there is room, showing a picked number in its field, and the warning that the sandbox does not answer.
// Everything else works without this file, and without JavaScript at all.

document.documentElement.classList.add("js");

// The reader folds parts in and out: updates must not.
htmx.registerExtension("folds", {
  htmx_before_morph_attr: (element, { attrName }) => !(element.tagName === "DETAILS" && attrName === "open"),
});

if (matchMedia("(min-width: 68rem)").matches) {
  for (const fold of document.querySelectorAll("details.wide")) fold.open = true;
}

// Of a typed and a picked number the picked one counts: the field always shows the number that is asked.
document.addEventListener("input", ({ target }) => {
  const field = (name) => document.getElementById(name);
  if (target.id === "ask-magic" && target.value) field("ask-number").value = target.value;
  if (target.id === "ask-number") field("ask-magic").value = "";
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const name = button.lastElementChild.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    document.getElementById("copied").textContent = `Copied${name}`;
  } catch {
    // The browser forbids it: the text is selected instead, to be copied with the keyboard.
    getSelection().selectAllChildren(source);
    document.getElementById("copied").textContent = `Selected${name}: copy it with the keyboard`;
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

// The button of an answered prompt disappears, and the focus with it: the focus moves to the phone, or to the first of
// those that wait for an answer.
const phoneOf = (element) => element.closest("[data-phone]")?.dataset.phone ?? null;
let answeredOn = null;
document.addEventListener("htmx:before:request", (event) => { answeredOn = phoneOf(event.target); });
document.addEventListener("focusin", (event) => {
  if (phoneOf(event.target) !== answeredOn) answeredOn = null;
});
document.addEventListener("htmx:after:swap", () => {
  if (!answeredOn || document.activeElement !== document.body) return;
  const number = document.getElementById(`number-${answeredOn}`);
  (number?.closest(".phone h3") ?? document.querySelector(".phone h3"))?.focus();
  answeredOn = null;
});
document.addEventListener("htmx:after:request", (event) => {
  for (const field of event.target.querySelectorAll("[data-empty-after]")) field.value = "";
});

const lost = (isLost) => () => { document.getElementById("lost").hidden = !isLost; };
for (const name of ["htmx:sse:error", "htmx:error"]) document.addEventListener(name, lost(true));
for (const name of ["htmx:sse:after:connection", "htmx:sse:after:message"]) document.addEventListener(name, lost(false));
