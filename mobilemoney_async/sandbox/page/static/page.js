"use strict";
// What HTML and htmx cannot do: copy, clear a PIN that was sent, keep the focus near a prompt that is gone, and say that
// the sandbox does not answer. Everything else works without this file, and without JavaScript at all.

document.documentElement.classList.add("js");

// Whether a part is folded out is the reader's business: news must not fold it.
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
    // The browser forbids it: the text is selected instead, to be copied by hand.
    getSelection().selectAllChildren(source);
    document.getElementById("copied").textContent = "Selected: copy it with the keyboard";
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

// A prompt that was answered takes its button away, and the focus with it: then the phone has it.
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
