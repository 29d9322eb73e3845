// A form that sends test messages.

import { post } from "./api.js";
import { refresh } from "./app.js";
import { toast } from "./live.js";
import { attribute, h, icon, put, text } from "./dom.js";
import { plural } from "./format.js";

let fieldNumber = 0;

function field(name, input, hint) {
  fieldNumber += 1;
  input.id = `field-${fieldNumber}`;
  if (hint) input.setAttribute("aria-describedby", `${input.id}-hint`);
  return h("div", { class: "field" }, h("label", { for: input.id }, name), input, hint && h("p", { class: "hint", id: `${input.id}-hint` }, hint));
}

export function sendForm(address, fixed, sessionsNeeded, after, { canDelay = true } = {}) {
  const body = h("textarea", { rows: 4, spellcheck: "false", value: '{"order": 1001, "item": "boots"}' });
  const subject = h("input", { autocomplete: "off" });
  const contentType = h("input", { autocomplete: "off", value: "application/json", spellcheck: "false" });
  const session = h("input", { autocomplete: "off", spellcheck: "false" });
  const identity = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "a new one" });
  const amount = h("input", { type: "number", min: 1, max: 100, value: 1 });
  const delay = h("input", { type: "number", min: 0, max: 2592000, value: 0 });
  const extra = h("textarea", { rows: 2, spellcheck: "false", placeholder: "region = north\nsize := 42" });
  const button = h("button", { class: "primary", type: "submit" }, "Send");
  const error = h("p", { class: "error", role: "alert" });

  // Every line goes to the server as it was typed: the server refuses what it does not understand.
  function propertyLines() {
    return extra.value.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  }

  async function submit(event) {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    text(error, "");
    const wish = { ...fixed(), body: body.value, subject: subject.value, content_type: contentType.value, session_id: session.value, message_id: identity.value, count: Number(amount.value) || 1, delay_seconds: Number(delay.value) || 0, properties: propertyLines() };
    try {
      after(await post(address, wish));
    } catch (refusal) {
      text(error, refusal.status === 0 ? "No answer in time: the message may or may not have arrived." : refusal.message);
    } finally {
      setBusy(false);
    }
  }

  // Not disabled: that would take the focus away from who uses the keyboard.
  let isBusy = false;
  function setBusy(value) {
    isBusy = value;
    attribute(button, "aria-disabled", value ? "true" : null);
  }

  const sessionField = field("Session id", session);
  function update(data) {
    const isNeeded = sessionsNeeded(data);
    session.required = isNeeded;
    text(sessionField.querySelector("label"), isNeeded ? "Session id (required)" : "Session id");
  }
  const element = h(
    "form",
    { class: "sendform", on: { submit } },
    field("Body", body),
    h("div", { class: "grid" }, field("Subject", subject), field("Content type", contentType), sessionField, field("Message id", identity), field("Copies", amount), canDelay && field("Deliver after (seconds)", delay)),
    field("Application properties", extra, "One per line: name = text, or name := value for a number, true, false or null."),
    error,
    h("div", { class: "buttons" }, button),
  );
  return { element, update };
}

export function sendPane(place, path) {
  const element = h("div", { class: "pane" });
  const form = sendForm(`${place.base}/send`, () => ({ path }), (data) => Boolean(data?.sessions), (done) => {
    toast(`${plural(done.sent, "message")} accepted by ${path}${done.duplicates ? `, ${done.duplicates} known already and dropped` : ""}.`);
    refresh();
  });
  if (place.can("Send")) put(element, form.element);
  else put(element, h("div", { class: "empty" }, icon("lock"), h("h2", {}, "Sending needs the right to send"), h("p", {}, "Sign in with a rule that holds Send on this entity.")));
  return { element, update: form.update };
}
