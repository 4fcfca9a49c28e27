"use strict";
// The parts that HTML and htmx cannot do: copying, clearing a sent PIN, keeping the focus near an answered prompt, and the
// warning that the sandbox does not answer. Everything else works without this file, and without JavaScript at all.

document.documentElement.classList.add("js");

// The reader folds parts in and out: updates must not.
htmx.registerExtension("folds", {
  htmx_before_morph_attr: (element, { attrName }) => !(element.tagName === "DETAILS" && attrName === "open"),
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    document.getElementById("copied").textContent = "Copied";
  } catch {
    // The browser forbids it: the text is selected instead, to be copied with the keyboard.
    getSelection().selectAllChildren(source);
    document.getElementById("copied").textContent = "Selected: copy it with the keyboard";
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

// The button of an answered prompt disappears, and the focus with it: the focus moves to the phone.
let answeredOn = null;
document.addEventListener("htmx:before:request", (event) => {
  answeredOn = event.target.closest(".phone")?.id ?? null;
});
document.addEventListener("focusin", (event) => {
  if (event.target.closest(".phone")?.id !== answeredOn) answeredOn = null;
});
document.addEventListener("htmx:after:swap", () => {
  if (!answeredOn || document.activeElement !== document.body) return;
  document.getElementById(answeredOn)?.querySelector("h3").focus();
  answeredOn = null;
});
document.addEventListener("htmx:after:request", (event) => {
  for (const field of event.target.querySelectorAll("[data-empty-after]")) field.value = "";
});

const lost = (isLost) => () => { document.getElementById("lost").hidden = !isLost; };
for (const name of ["htmx:sse:error", "htmx:error"]) document.addEventListener(name, lost(true));
for (const name of ["htmx:sse:after:connection", "htmx:sse:after:message"]) document.addEventListener(name, lost(false));
