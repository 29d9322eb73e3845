// One entity: its counts and charts, and behind tabs its messages, a form to send, its settings.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { attribute, h, icon, put, text } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { messagesPane } from "./messages.js";
import { addressOf, tile } from "./overview.js";
import { sendPane } from "./send.js";

const TABS = [["messages", "Messages"], ["dead-letter", "Dead-letter"], ["transfer-dead-letter", "Transfer dead-letter"], ["send", "Send"], ["settings", "Settings"]];
const COUNTED = new Map([["dead-letter", "dead_letter"], ["transfer-dead-letter", "transfer_dead_letter"]]);
const NOT_FOR = new Map([["topic", ["messages", "dead-letter"]], ["subscription", ["send"]]]);

function settingsPane() {
  const element = h("div", { class: "pane" });
  let shown = null;
  function update(data) {
    const wanted = JSON.stringify([data?.settings, data?.subscriptions]);
    if (!data || wanted === shown) return;
    shown = wanted;
    if (data.settings === null) {
      put(element, h("div", { class: "empty" }, icon("lock"), h("h2", {}, "Settings need the right to manage"), h("p", {}, "Sign in with a rule that holds Manage on this entity.")));
      return;
    }
    put(element, h("dl", { class: "settings" }, data.settings.map((one) => h("div", {}, h("dt", {}, one.name), h("dd", { class: one.value === null || one.value === false ? "zero" : "" }, one.value === null ? "none" : one.value === true ? "yes" : one.value === false ? "no" : one.value)))));
  }
  return { element, update };
}

export function entityView(place, path, firstTab) {
  const tiles = { active: tile("Active"), scheduled: tile("Scheduled"), dead_letter: tile("Dead-letter"), transfer_dead_letter: tile("Transfer dead-letter"), size: tile("Stored"), receivers: tile("Receivers") };
  tiles.transfer_dead_letter.element.hidden = true;
  const badges = h("span", { class: "badges" });
  const related = h("p", { class: "related" });
  const depth = chart("Depth", [{ name: "messages", style: "depth", of: (point) => point.active }], count);
  const rates = chart("Messages / s", [{ name: "in", style: "in", of: (point) => point.inRate }, { name: "out", style: "out", of: (point) => point.outRate }], rate);
  const panes = new Map();
  const body = h("div", { id: "pane", role: "tabpanel" });
  const tabs = TABS.map(([id, name]) => h("a", { role: "tab", id: `tab-${id}`, "aria-controls": "pane", href: addressOf(place, path, id), "data-tab": id }, name, COUNTED.has(id) && h("span", { class: "count", hidden: true })));
  const tabOf = (id) => tabs.find((one) => one.dataset.tab === id);
  tabOf("transfer-dead-letter").hidden = firstTab !== "transfer-dead-letter";
  const missing = h("div", { class: "card empty", hidden: true }, icon("empty"), h("h2", {}, "No such entity"), h("p", {}, "It may have been deleted, or your rule has no right on it."), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
  const content = h(
    "div",
    { class: "view" },
    h("div", { class: "card" }, h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element))),
    h("div", { class: "charts low" }, depth.element, rates.element),
    h("div", { class: "card" }, h("div", { class: "tabs", role: "tablist", "aria-label": "About this entity" }, tabs), body),
  );
  const name = h("h1", { class: "path" });
  text(name, path);
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("div", {}, h("a", { class: "up", href: "#/" }, icon("back"), place.name), h("div", { class: "title" }, name, badges), related)), missing, content);

  let data = null;
  let error = null;
  let current = null;

  function make(id) {
    if (id === "send") return sendPane(place, path);
    if (id === "settings") return settingsPane();
    return messagesPane(place, path, id === "messages" ? "main" : id, () => data);
  }

  function tab(id) {
    const known = tabs.find((one) => one.dataset.tab === id && !one.hidden) ?? tabs.find((one) => !one.hidden);
    current = known.dataset.tab;
    for (const one of tabs) {
      attribute(one, "aria-selected", one === known ? "true" : "false");
      attribute(one, "tabindex", one === known ? 0 : -1);
    }
    if (!panes.has(current)) panes.set(current, make(current));
    const pane = panes.get(current);
    put(body, pane.element);
    known.scrollIntoView({ block: "nearest", inline: "nearest" });
    attribute(body, "aria-labelledby", known.id);
    pane.shown?.();
    pane.update?.(data);
  }

  function arrow(event) {
    const shown = tabs.filter((one) => !one.hidden);
    const at = shown.indexOf(document.activeElement);
    const last = shown.length - 1;
    const to = new Map([["ArrowRight", at === last ? 0 : at + 1], ["ArrowLeft", at ? at - 1 : last], ["Home", 0], ["End", last]]).get(event.key);
    if (to === undefined) return;
    event.preventDefault();
    shown[to].focus();
    shown[to].click();
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
  function drawKind() {
    put(badges, h("span", { class: "badge" }, data.kind), data.sessions && h("span", { class: "badge" }, "sessions"), data.backlog && h("span", { class: "badge accent" }, "backlog"), data.status !== "Active" && h("span", { class: "badge warn" }, data.status));
    const linked = data.topic ? [data.topic] : data.subscriptions;
    put(related, linked.length > 0 && [data.topic ? "Topic " : "Subscriptions ", linked.map((one, index) => [index ? ", " : "", h("a", { href: addressOf(place, one) }, data.topic ? one : one.split("/").at(-1))])]);
    const hidden = NOT_FOR.get(data.kind) ?? [];
    for (const one of tabs) if (one.dataset.tab !== "transfer-dead-letter") one.hidden = hidden.includes(one.dataset.tab);
    if (hidden.includes(current)) tab(data.kind === "topic" ? "send" : "messages");
  }

  function drawCounts() {
    for (const state of ["active", "scheduled", "dead_letter", "transfer_dead_letter"]) text(tiles[state].value, count(data[state]));
    text(tiles.active.note, data.deferred ? `${count(data.deferred)} of them deferred` : "");
    tiles.dead_letter.element.classList.toggle("alarm", data.dead_letter > 0);
    tiles.transfer_dead_letter.element.hidden = !data.transfer_dead_letter;
    tiles.transfer_dead_letter.element.classList.add("alarm");
    text(tiles.size.value, bytes(data.size_bytes));
    text(tiles.size.note, data.size_bytes_max ? `of ${bytes(data.size_bytes_max)}` : "counted in its topic");
    text(tiles.receivers.value, count(data.receivers));
    text(tiles.receivers.note, [data.receivers_waiting ? `${count(data.receivers_waiting)} waiting` : "", data.locks ? `${count(data.locks)} locked` : "", data.sessions_held ? `${count(data.sessions_held)} sessions held` : ""].filter(Boolean).join(" · "));
    for (const [id, key] of COUNTED) {
      const badge = tabOf(id).querySelector(".count");
      text(badge, data[key] ? count(data[key]) : "");
      badge.hidden = !data[key];
    }
    if (data.transfer_dead_letter) tabOf("transfer-dead-letter").hidden = false;
  }

  function update() {
    const isGone = error !== null && (error.status === 404 || error.status === 403);
    missing.hidden = !isGone;
    content.hidden = isGone;
    element.classList.toggle("stale", place.isStale);
    const now = performance.now();
    const points = place.points(place.row(path)?.path ?? path);
    depth.update(points, now);
    rates.update(points, now);
    if (!data) return;
    const wanted = JSON.stringify([data.kind, data.sessions, data.status, data.backlog, data.subscriptions, data.topic]);
    if (wanted !== shownBadges) {
      shownBadges = wanted;
      drawKind();
    }
    drawCounts();
    panes.get(current)?.update?.(data);
  }
  tab(firstTab);
  return { title: path, element, update, ask, tab, tick: () => element.classList.toggle("stale", place.isStale) };
}
