// Sign-in with a rule's name and key, or with a whole connection string.

import * as api from "./api.js";
import { attribute, h, icon, text } from "./dom.js";

const ROOT = "RootManageSharedAccessKey";

export function fromConnectionString(given) {
  const parts = new Map();
  for (const part of given.split(";")) {
    const at = part.indexOf("=");
    if (at > 0) parts.set(part.slice(0, at).trim().toLowerCase(), part.slice(at + 1).trim());
  }
  if (!parts.has("sharedaccesskey")) return null;
  return {
    rule: parts.get("sharedaccesskeyname") ?? ROOT,
    key: parts.get("sharedaccesskey"),
    entity: parts.get("entitypath") ?? "",
  };
}

const PARTS = ["Endpoint", "SharedAccessKeyName", "SharedAccessKey", "EntityPath", "UseDevelopmentEmulator"];

// What is wrong with a connection string; null for a good one, and for a key.
function faultOf(given, parsed) {
  if (!/;|:\/\/|^\s*Endpoint\s*=/i.test(given)) return null;
  const names = given.split(";").filter((part) => part.trim()).map((part) => part.split("=")[0].trim());
  const missing = ["SharedAccessKeyName", "SharedAccessKey"].find((part) => !names.some((name) => name.toLowerCase() === part.toLowerCase()));
  const unknown = names.find((name) => !PARTS.some((part) => part.toLowerCase() === name.toLowerCase()));
  if (missing && unknown !== undefined) return `This connection string has an unknown part, “${unknown.slice(0, 40)}”. Known are ${PARTS.join(", ")}.`;
  return parsed ? null : "This connection string has no SharedAccessKey.";
}

export function signInView(done, reason) {
  const rule = h("input", { id: "rule", name: "username", autocomplete: "username", value: ROOT, required: true, spellcheck: "false" });
  const key = h("input", { id: "key", name: "password", type: "password", autocomplete: "current-password", required: true });
  const entity = h("input", { id: "entity", autocomplete: "off", spellcheck: "false", placeholder: "the whole namespace" });
  const error = h("p", { class: "error", role: "alert" }, reason ?? "");
  const button = h("button", { class: "primary wide", type: "submit" }, "Sign in");

  let isBusy = false;
  async function submit(event) {
    event.preventDefault();
    const pasted = fromConnectionString(key.value);
    const fault = faultOf(key.value, pasted);
    if (fault) {
      text(error, fault);
      return;
    }
    const wish = pasted ?? { rule: rule.value.trim(), key: key.value.trim(), entity: entity.value.trim() };
    if (pasted) rule.value = pasted.rule;
    if (isBusy) return;
    isBusy = true;
    attribute(button, "aria-disabled", "true");
    text(error, "");
    try {
      done(await api.signIn(wish.rule, wish.key, wish.entity));
    } catch (refusal) {
      text(error, refusal.status === 0 ? "The namespace does not answer. Is it running?" : refusal.message);
      key.focus();
      key.select();
    } finally {
      isBusy = false;
      attribute(button, "aria-disabled", null);
    }
  }

  return h(
    "section",
    { class: "signin" },
    h(
      "form",
      { class: "card", on: { submit }, "aria-labelledby": "signin-title" },
      h("img", { src: "/$page/icon.svg", alt: "", width: 44, height: 44 }),
      h("h1", { id: "signin-title" }, "Sign in"),
      h("p", { class: "soft" }, "With the key of a shared access rule. You may do here what the rule allows."),
      h("label", { for: "rule" }, "Rule"),
      rule,
      h("label", { for: "key" }, "Key, or a whole connection string"),
      key,
      h("details", {}, h("summary", {}, "The rule belongs to one entity"), h("label", { for: "entity" }, "Entity path"), entity),
      error,
      button,
      h("p", { class: "hint" }, icon("lock"), h("span", {}, "The command ", h("code", {}, "pairbus connection-string"), " prints it for a namespace of ", h("code", {}, "pairbus serve"), "; ", h("code", {}, "pairbus up"), " prints both when it starts.")),
    ),
  );
}
