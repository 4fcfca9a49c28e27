"use strict";
// The page only shows the status from the shop. The shop gives the order number. So after a second click, a reload or a
// lost answer it is the same order, and never a second payment.

const order = document.body.dataset.order;
const $ = (id) => document.getElementById(id);
const form = $("checkout");
const settled = new Set(["succeeded", "failed", "expired", "not_made"]);

const reasons = {
  PAYMENT_NOT_APPROVED: "You did not approve the payment.",
  INSUFFICIENT_BALANCE: "There is not enough money on this number.",
  PAYER_NOT_FOUND: "There is no Airtel Money account for this number.",
};

const texts = {
  sending: ["Sending your request…", "This may take a moment when many people pay at once."],
  pending: ["Look at your phone", "Approve the payment there with your PIN. This page shows when it is done."],
  finding_out: [
    "We are finding out",
    "We do not know yet whether this payment was made. Please do not pay again: this page will show the answer.",
  ],
  succeeded: ["Paid. Thank you!", "Your order is on its way to you."],
  failed: ["The payment failed", "Nothing was paid."],
  expired: ["Time ran out", "The payment was not approved in time. Nothing was paid."],
  not_made: ["Not paid yet", "The request did not get through. You can try again."],
};

let source = null;
let shown = null;

function show(status) {
  const [headline, explanation] = texts[status.state] || texts.finding_out;
  form.hidden = true;
  $("payment").hidden = false;
  $("payment").dataset.state = status.state;
  $("payment").setAttribute("aria-busy", String(!settled.has(status.state)));
  $("order").textContent = order;
  if (status.amount) $("amount").textContent = `${Number(status.amount).toLocaleString("en")} TZS`;
  $("reference-row").hidden = !status.reference;
  $("reference").textContent = status.reference || "";
  if (status.state !== shown) {
    $("headline").textContent = headline;
    $("explanation").textContent =
      status.state === "failed" ? `${reasons[status.reason] || "The payment did not go through."} Nothing was paid.` : explanation;
    document.title = `${headline} · Duka`;
    if (shown === null) $("headline").focus();
    shown = status.state;
  }
  $("again").hidden = status.state !== "not_made";
  $("new").hidden = !settled.has(status.state) || status.state === "not_made";
}

function watch() {
  if (source) source.close();
  source = new EventSource(`/orders/${encodeURIComponent(order)}/events`);
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.addEventListener("settled", () => source.close());
  // The browser reconnects by itself, unless the shop answered with an error.
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) setTimeout(look, 3000); };
}

async function look() {
  try {
    const answer = await fetch(`/orders/${encodeURIComponent(order)}`);
    // It never reached the shop: the same order may be sent again.
    if (answer.status === 404) { if (shown) show({ state: "not_made" }); return; }
    if (answer.ok) show(await answer.json());
  } catch { /* offline: the next look shows the status */ }
  if (!settled.has(shown)) watch();
}

function retry() {
  shown = null;
  $("payment").hidden = true;
  form.hidden = false;
  $("phone").focus();
}

function complain(text) {
  $("phone").setAttribute("aria-invalid", "true");
  $("phone-error").textContent = text;
  $("phone-error").hidden = false;
  $("phone").focus();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  $("phone").removeAttribute("aria-invalid");
  $("phone-error").hidden = $("other").hidden = true;
  $("pay").disabled = true;
  const fields = Object.fromEntries(new FormData(form));
  // From here on a reload shows this order.
  history.replaceState(null, "", `/?order=${encodeURIComponent(order)}`);
  try {
    const answer = await fetch(`/orders/${encodeURIComponent(order)}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields),
    });
    const status = await answer.json();
    if (answer.ok) {
      show(status);
      if (!settled.has(status.state)) watch();
    } else {
      if (answer.status === 409) {
        // It has another payment: one that is open or final is shown, and only otherwise a new order is offered.
        show({ state: "finding_out" });
        await look();
        if (shown !== "not_made") return;
        retry();
        $("other").hidden = false;
      }
      complain(status.message || status.title || "Nothing was paid. Please try again.");
    }
  } catch {
    // The request or its answer was lost: the order's status shows which.
    show({ state: "finding_out" });
    setTimeout(look, 1000);
  } finally {
    $("pay").disabled = false;
  }
});

$("again").addEventListener("click", retry);

if (new URLSearchParams(location.search).has("order")) look();
