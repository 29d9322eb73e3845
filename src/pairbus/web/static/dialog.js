// A question before something that cannot be undone. Escape says no; the focus goes back to where it was.

import { h, text } from "./dom.js";

let dialogNumber = 0;

// Opens a dialog over the page; the promise holds once it is closed, whether by yes.
function open(title, content, buttons) {
  dialogNumber += 1;
  const id = `dialog-title-${dialogNumber}`;
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title), content, buttons);
  const closed = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(dialog.returnValue === "yes");
    });
  });
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, closed };
}

export function confirmTyped(title, lines, wanted, action) {
  const typed = h("input", { id: "dialog-typed", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const go = h("button", { class: "danger", type: "submit", disabled: true }, action);
  const form = h(
    "form",
    { method: "dialog", on: { submit: (event) => { event.preventDefault(); dialog.close("yes"); } } },
    lines.map((line) => h("p", {}, line)),
    h("label", { for: "dialog-typed" }, "Type ", h("code", {}, wanted), " to confirm."),
    typed,
    h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => dialog.close("") } }, "Cancel"), go),
  );
  typed.addEventListener("input", () => { go.disabled = typed.value !== wanted; });
  const { dialog, closed } = open(title, form);
  typed.focus();
  return closed;
}

export function confirmPlain(title, line, action, tone = "primary") {
  const buttons = h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => dialog.close("") } }, "Cancel"), h("button", { class: tone, type: "button", on: { click: () => dialog.close("yes") } }, action));
  const { dialog, closed } = open(title, h("p", {}, line), buttons);
  return closed;
}

// Something is being done in pieces; it can be stopped between two of them.
export function working(title) {
  const line = h("p", { role: "status" }, "…");
  const stop = h("button", { type: "button", on: { click: () => { isCancelled = true; stop.disabled = true; } } }, "Stop");
  let isCancelled = false;
  const { dialog } = open(title, line, h("div", { class: "buttons" }, stop));
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); isCancelled = true; });
  return { update: (told) => text(line, told), isCancelled: () => isCancelled, close: () => dialog.close("") };
}
