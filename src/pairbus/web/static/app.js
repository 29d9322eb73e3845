// The frame around the views: session, address, clockwork, notices.

import * as api from "./api.js";
import { attribute, h, icon, put, text } from "./dom.js";
import { age, plural } from "./format.js";
import { announce, silence } from "./live.js";
import { askAll, begin, INTERVAL_MS, place, rememberBacklog, STALE_MS, store } from "./store.js";
import { entityView } from "./entity.js";
import { faultsView } from "./faults.js";
import { overviewView } from "./overview.js";
import { pairingView } from "./pairing.js";
import { signInView } from "./signin.js";

const HIDDEN_INTERVAL_MS = 5000;
const top = document.getElementById("top");
const main = document.getElementById("main");
const notices = document.getElementById("notices");

let view = null;
let shownAddress = null;
let timer = null;
let header = null;
let isViewAsking = false;
const wasStale = new Map();
const wasHealth = new Map();

function drawTop() {
  const links = [["Overview", "#/"], ["Pairing", "#/pairing"]];
  if (store.places.some((one) => one.faults && one.can("Manage"))) links.push(["Faults", "#/faults"]);
  const pulse = h("span", { class: "pulse" });
  const old = h("span", { class: "age" });
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const who = `${store.session.rule}${store.session.scope ? ` on ${store.session.scope}` : ""}`;
  const leave = h("button", { class: "quiet", type: "button", title: `Signed in as ${who}`, on: { click: leavePage } }, "Sign out");
  const anchors = links.map(([name, address]) => h("a", { href: address }, name));
  put(
    top,
    h(
      "div",
      { class: "bar" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: "/$page/icon.svg", alt: "", width: 26, height: 26 }), h("span", {}, "PairBus")),
      h("nav", { "aria-label": "Views" }, anchors),
      h("div", { class: "who" }, h("span", { class: "live" }, dot, pulse, old), h("span", { class: "rule", title: "Signed in with this rule" }, icon("lock"), h("span", {}, who)), leave),
    ),
  );
  top.hidden = false;
  header = { anchors, pulse, old, dot };
}

function told(one) {
  if (one.isRefused) return "does not take this key any more. What is shown of it is";
  return "does not answer. What is shown of it is";
}

function drawNotices() {
  const stale = store.places.filter((one) => one.isStale);
  const oldest = Math.max(0, ...stale.map((one) => (one.answeredAt === null ? 0 : one.ageMs)));
  if (header) {
    const state = stale.length === 0 ? "Live" : stale.length < store.places.length ? "Partly live" : "Stale";
    text(header.pulse, state);
    text(header.old, oldest ? `· ${age(oldest)} old` : "");
    attribute(header.dot, "class", `dot ${stale.length === 0 ? "good" : stale.length < store.places.length ? "warn" : "bad"}`);
  }
  const wanted = stale.map((one) => one.id).join();
  if (notices.dataset.shown !== wanted) {
    notices.dataset.shown = wanted;
    put(notices, stale.map((one) => h("div", { class: "notice" }, icon("warning"), h("p", {}, h("strong", {}, one.name), " ", h("span", { class: "since" })))));
    drawTitle();
  }
  stale.forEach((one, index) => {
    const since = notices.children[index]?.querySelector(".since");
    if (since) text(since, one.answeredAt === null ? "has not answered yet." : `${told(one)} ${age(one.ageMs)} old.`);
  });
}

// What changed since the last look, in one sentence each: a screen reader must not read numbers all day.
function announceChanges() {
  for (const one of store.places) {
    const before = wasStale.get(one.id);
    if (before !== undefined && before !== one.isStale) {
      announce(one.isStale ? `Namespace ${one.name} does not answer.` : `Namespace ${one.name} answers again.`);
    }
    wasStale.set(one.id, one.isStale);
  }
  const changed = new Map();
  for (const entity of store.pairing?.entities ?? []) {
    const before = wasHealth.get(entity.path);
    if (before !== undefined && before !== entity.state) changed.set(entity.state, [...(changed.get(entity.state) ?? []), entity.path]);
    wasHealth.set(entity.path, entity.state);
  }
  for (const [state, paths] of changed) {
    announce(paths.length === 1 ? `${paths[0]} is ${state}.` : `${plural(paths.length, "entity", "entities")} are ${state}.`);
  }
}

function drawTitle() {
  const silent = store.places.filter((one) => one.isStale && one.answeredAt !== null).length;
  document.title = `${silent ? "⚠ " : ""}${view?.title ?? "PairBus"} · PairBus`;
}

function address() {
  const [path] = location.hash.replace(/^#/, "").split("?");
  return path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

function choose() {
  const [name, id, path, tab] = address();
  if (name === "pairing") return pairingView();
  if (name === "faults") return faultsView();
  if (name === "e" && place(id) && path) return entityView(place(id), path, tab ?? "messages");
  return overviewView();
}

function navigate() {
  if (!store.session) return;
  const parts = address();
  if (parts[0] === "main") return; // the skip link
  const wanted = parts.slice(0, 3).join("\n");
  if (view !== null && wanted === shownAddress && view.tab) {
    view.tab(parts[3] ?? "messages");
    return;
  }
  const isFirst = shownAddress === null;
  shownAddress = wanted;
  view = choose();
  drawTitle();
  put(main, view.element);
  const here = parts[0] === "e" || !parts.length ? "#/" : `#/${parts[0]}`;
  for (const anchor of header.anchors) attribute(anchor, "aria-current", anchor.getAttribute("href") === here ? "page" : null);
  draw();
  void askView();
  // A new view begins at its heading; a link in the frame keeps the focus, for the next view may be wanted from there.
  const heading = main.querySelector("h1");
  attribute(heading, "tabindex", -1);
  if (!isFirst || document.activeElement === document.body) {
    if (!document.activeElement?.closest("#top")) heading?.focus({ preventScroll: true });
  }
  window.scrollTo(0, 0);
}

function draw() {
  drawNotices();
  view?.update();
}

// What the view needs beside the overview. It does not hold up the round: another namespace may be well.
async function askView() {
  const shown = view;
  if (!shown?.ask || isViewAsking) return;
  isViewAsking = true;
  try {
    await shown.ask();
  } finally {
    isViewAsking = false;
  }
  if (shown === view) draw();
  else void askView();
}

async function beat() {
  clearTimeout(timer);
  const begun = performance.now();
  const asked = askAll();
  void askView();
  const refused = await Promise.race([asked, new Promise((resolve) => setTimeout(resolve, INTERVAL_MS))]);
  if (refused && store.session) return signIn("Your session has ended. Sign in again.");
  if (!store.session) return undefined;
  rememberBacklog();
  announceChanges();
  draw();
  clearTimeout(timer);
  const interval = document.hidden ? HIDDEN_INTERVAL_MS : INTERVAL_MS;
  timer = setTimeout(beat, Math.max(100, interval - (performance.now() - begun)));
  return undefined;
}

export function refresh() {
  if (store.session) void beat();
}

function start(session) {
  begin(session);
  wasStale.clear();
  wasHealth.clear();
  drawTop();
  shownAddress = null;
  navigate();
  void beat();
}

async function leavePage() {
  clearTimeout(timer);
  try {
    await api.signOut();
  } catch {
    // The cookie's life is bounded; nothing more can be done from here.
  }
  signIn();
}

function signIn(reason) {
  clearTimeout(timer);
  store.session = null;
  silence();
  view = null;
  shownAddress = null;
  header = null;
  top.hidden = true;
  put(top);
  put(notices);
  delete notices.dataset.shown;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close("");
  document.title = "Sign in · PairBus";
  put(main, signInView(start, reason));
  main.querySelector("#key")?.focus();
}

window.addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  (main.querySelector("h1") ?? main).focus();
});
// Ages and timers go on between two answers.
setInterval(() => {
  if (!store.session) return;
  drawNotices();
  view?.tick?.();
}, STALE_MS / 6);

try {
  start(await api.session());
} catch (error) {
  signIn(error.status === 401 ? undefined : error.message);
}
