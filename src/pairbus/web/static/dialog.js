// A question before something that cannot be undone.

import { h } from "./dom.js";

export function confirmTyped(title, lines, wanted, action) {
  return new Promise((resolve) => {
    const typed = h("input", { autocomplete: "off", spellcheck: "false", "aria-label": `Type ${wanted} to confirm` });
    const go = h("button", { class: "danger", type: "submit", disabled: true }, action);
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      h(
        "form",
        { method: "dialog", on: { submit: (event) => { event.preventDefault(); dialog.close("yes"); } } },
        h("h2", { id: "dialog-title" }, title),
        lines.map((line) => h("p", {}, line)),
        h("p", { class: "soft" }, "Type ", h("code", {}, wanted), " to confirm."),
        typed,
        h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => dialog.close("") } }, "Cancel"), go),
      ),
    );
    typed.addEventListener("input", () => { go.disabled = typed.value !== wanted; });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    typed.focus();
  });
}

export function confirmPlain(title, line, action) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, line),
      h("div", { class: "buttons" }, h("button", { type: "button", on: { click: () => dialog.close("") } }, "Cancel"), h("button", { class: "danger", type: "button", on: { click: () => dialog.close("yes") } }, action)),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

