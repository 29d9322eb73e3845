// One entity: its counts and charts, and behind tabs its messages, a form to send, its settings.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { attribute, h, icon, put, text } from "./dom.js";
import { bytes, clock, count, rate } from "./format.js";
import { messagesPane } from "./messages.js";
import { addressOf } from "./overview.js";
import { sendPane } from "./send.js";

const TABS = [["messages", "Messages"], ["dead-letter", "Dead-letter"], ["send", "Send"], ["settings", "Settings"]];

function settingsPane() {
  const element = h("div", { class: "pane" });
  let shown = null;
  function update(data) {
    const wanted = JSON.stringify([data?.settings, data?.subscriptions]);
    if (!data || wanted === shown) return;
    shown = wanted;
    if (data.settings === null) {
      put(element, h("div", { class: "empty" }, icon("lock"), h("h3", {}, "Settings need the right to manage"), h("p", {}, "Sign in with a rule that holds Manage on this entity.")));
      return;
    }
    put(element, h("dl", { class: "settings" }, data.settings.map((one) => h("div", {}, h("dt", {}, one.name), h("dd", { class: one.value === null || one.value === false ? "zero" : "" }, one.value === null ? "none" : one.value === true ? "yes" : one.value === false ? "no" : one.value)))));
  }
  return { element, update };
}

export function entityView(place, path, firstTab) {
  const counts = ["active", "scheduled", "deferred", "dead_letter"].map((name) => ({ name, value: h("strong", { class: "number" }, "–") }));
  const size = h("strong", { class: "number" }, "–");
  const sizeNote = h("span", { class: "note" });
  const receivers = h("strong", { class: "number" }, "–");
  const receiversNote = h("span", { class: "note" });
  const badges = h("span", { class: "badges" });
  const related = h("p", { class: "related" });
  const depth = chart("Depth", [{ name: "messages", style: "depth", of: (point) => point.active }], count);
  const rates = chart("Messages / s", [{ name: "in", style: "in", of: (point) => point.inRate }, { name: "out", style: "out", of: (point) => point.outRate }], rate);
  const panes = new Map();
  const body = h("div", { id: "pane" });
  const tabs = TABS.map(([id, name]) => h("a", { role: "tab", id: `tab-${id}`, "aria-controls": "pane", href: addressOf(place, path, id), "data-tab": id }, name, id === "dead-letter" && h("span", { class: "count", hidden: true })));
  const missing = h("div", { class: "empty", hidden: true }, icon("empty"), h("h3", {}, "No such entity"), h("p", {}, "It may have been deleted, or your rule has no right on it."), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
  const tile = (name, value, note) => h("div", { class: "tile" }, h("span", { class: "label" }, name), value, note);
  const content = h(
    "div",
    {},
    h("div", { class: "card" }, h("div", { class: "tiles" }, counts.map((one) => tile(one.name === "dead_letter" ? "Dead-letter" : one.name[0].toUpperCase() + one.name.slice(1), one.value)), tile("Stored", size, sizeNote), tile("Receivers", receivers, receiversNote))),
    h("div", { class: "charts" }, depth.element, rates.element),
    h("div", { class: "card" }, h("div", { class: "tabs", role: "tablist", "aria-label": "About this entity" }, tabs), body),
  );
  const name = h("h1", { class: "path" });
  text(name, path);
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("div", {}, h("a", { class: "up", href: "#/" }, icon("back"), place.name), name, h("div", {}, badges), related)), missing, content);

  let data = null;
  let error = null;
  let current = null;

  function make(id) {
    if (id === "send") return sendPane(place, path, () => data);
    if (id === "settings") return settingsPane();
    return messagesPane(place, path, id === "dead-letter" ? "dead-letter" : "main", () => data);
  }

  function tab(id) {
    const known = tabs.find((one) => one.dataset.tab === id && !one.hidden) ?? tabs.find((one) => !one.hidden);
    current = known.dataset.tab;
    for (const one of tabs) {
      attribute(one, "aria-selected", one === known);
      attribute(one, "tabindex", one === known ? 0 : -1);
    }
    if (!panes.has(current)) panes.set(current, make(current));
    const pane = panes.get(current);
    put(body, pane.element);
    known.scrollIntoView({ block: "nearest", inline: "nearest" });
    attribute(body, "role", "tabpanel");
    attribute(body, "aria-labelledby", known.id);
    pane.shown?.();
    pane.update?.(data);
  }

  function arrow(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const shown = tabs.filter((one) => !one.hidden);
    const next = shown[(shown.indexOf(document.activeElement) + step + shown.length) % shown.length];
    next.focus();
    next.click();
  }
  tabs.forEach((one) => one.addEventListener("keydown", arrow));

  async function ask() {
    try {
      data = await get(`${place.base}/entity?path=${encodeURIComponent(path)}`);
      error = null;
    } catch (refusal) {
      error = refusal;
    }
  }

  let shownBadges = null;
  function update() {
    const isGone = error !== null && (error.status === 404 || error.status === 403);
    missing.hidden = !isGone;
    content.hidden = isGone;
    element.classList.toggle("stale", place.isStale);
    const now = performance.now();
    depth.update(place.points(path), now);
    rates.update(place.points(path), now);
    if (!data) return;
    for (const one of counts) {
      text(one.value, count(data[one.name]));
      one.value.parentElement.classList.toggle("alarm", one.name === "dead_letter" && data.dead_letter > 0);
    }
    text(size, bytes(data.size_bytes));
    text(sizeNote, data.size_bytes_max ? `of ${bytes(data.size_bytes_max)}` : "in its topic");
    text(receivers, count(data.receivers));
    text(receiversNote, [data.locks ? `${count(data.locks)} locked` : "", data.sessions_held ? `${count(data.sessions_held)} sessions held` : ""].filter(Boolean).join(" · "));
    const wanted = JSON.stringify([data.kind, data.sessions, data.status, data.backlog, data.subscriptions, data.topic]);
    if (wanted !== shownBadges) {
      shownBadges = wanted;
      put(badges, h("span", { class: "badge" }, data.kind), data.sessions && h("span", { class: "badge" }, "sessions"), data.backlog && h("span", { class: "badge accent" }, "backlog"), data.status !== "Active" && h("span", { class: "badge warn" }, data.status));
      const linked = data.topic ? [data.topic] : data.subscriptions;
      put(related, linked.length > 0 && [data.topic ? "Topic " : "Subscriptions ", linked.map((one, index) => [index ? ", " : "", h("a", { href: addressOf(place, one) }, data.topic ? one : one.split("/").at(-1))])]);
      const hidden = { topic: ["messages", "dead-letter"], subscription: ["send"] }[data.kind] ?? [];
      for (const one of tabs) one.hidden = hidden.includes(one.dataset.tab);
      if (hidden.includes(current)) tab("settings");
    }
    const dead = tabs[1].querySelector(".count");
    text(dead, data.dead_letter ? count(data.dead_letter) : "");
    dead.hidden = !data.dead_letter;
    panes.get(current)?.update?.(data);
  }
  tab(firstTab);
  return { title: path, element, update, ask, tab };
}
