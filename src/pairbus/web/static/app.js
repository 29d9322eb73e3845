// The frame around the views: session, address, clockwork, notices.

import * as api from "./api.js";
import { attribute, h, icon, put, text } from "./dom.js";
import { duration } from "./format.js";
import { askAll, begin, INTERVAL_MS, place, STALE_MS, store } from "./store.js";
import { entityView } from "./entity.js";
import { faultsView } from "./faults.js";
import { overviewView } from "./overview.js";
import { pairingView } from "./pairing.js";
import { signInView } from "./signin.js";

const top = document.getElementById("top");
const main = document.getElementById("main");
const notices = document.getElementById("notices");
const live = document.getElementById("live");
const toasts = document.getElementById("toasts");

let view = null;
let shownAddress = null;
let timer = null;
let header = null;
const wasStale = new Map();
const wasHealth = new Map();

export function announce(message) {
  text(live, "");
  requestAnimationFrame(() => text(live, message));
}

export function toast(message, kind = "done") {
  const element = h("div", { class: `toast ${kind}` }, icon(kind === "done" ? "healthy" : "warning"), h("span", {}, message));
  toasts.append(element);
  announce(message);
  setTimeout(() => element.remove(), kind === "done" ? 5000 : 9000);
  while (toasts.children.length > 3) toasts.firstElementChild.remove();
}

function drawTop() {
  const links = [["Overview", "#/"], ["Pairing", "#/pairing"]];
  if (store.places.some((one) => one.faults && one.can("Manage"))) links.push(["Faults", "#/faults"]);
  const pulse = h("span", { class: "pulse" });
  const age = h("span", { class: "age" });
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const who = `${store.session.rule}${store.session.scope ? ` on ${store.session.scope}` : ""}`;
  const leave = h("button", { class: "quiet", type: "button", on: { click: leavePage } }, "Sign out");
  const anchors = links.map(([name, address]) => h("a", { href: address }, name));
  put(
    top,
    h(
      "div",
      { class: "bar" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: "/$page/icon.svg", alt: "", width: 26, height: 26 }), h("span", {}, "PairBus")),
      h("nav", { "aria-label": "Views" }, anchors),
      h("div", { class: "who" }, h("span", { class: "live" }, dot, pulse, age), h("span", { class: "rule", title: "Signed in with this rule" }, icon("lock"), who), leave),
    ),
  );
  top.hidden = false;
  header = { anchors, pulse, age, dot };
}

function drawNotices() {
  const stale = store.places.filter((one) => one.isStale);
  const oldest = Math.max(0, ...store.places.map((one) => (one.answeredAt === null ? 0 : one.ageMs)));
  if (header) {
    const state = stale.length === 0 ? "Live" : stale.length < store.places.length ? "Partly live" : "Stale";
    text(header.pulse, state);
    text(header.age, stale.length ? `· ${duration(oldest)} old` : "");
    attribute(header.dot, "class", `dot ${stale.length === 0 ? "good" : stale.length < store.places.length ? "warn" : "bad"}`);
    document.documentElement.classList.toggle("has-stale", stale.length > 0);
  }
  const wanted = stale.map((one) => one.id).join();
  if (notices.dataset.shown !== wanted) {
    notices.dataset.shown = wanted;
    put(notices, stale.map((one) => h("div", { class: "notice", role: "alert" }, icon("warning"), h("p", {}, h("strong", {}, one.name), " ", h("span", { class: "since" })))));
  }
  stale.forEach((one, index) => {
    const since = notices.children[index]?.querySelector(".since");
    if (!since) return;
    const age = one.answeredAt === null ? "has not answered yet." : `does not answer. What is shown of it is ${duration(Math.floor(one.ageMs / 1000) * 1000)} old.`;
    text(since, age);
  });
  for (const one of store.places) {
    const before = wasStale.get(one.id);
    if (before !== undefined && before !== one.isStale) {
      announce(one.isStale ? `Namespace ${one.name} does not answer.` : `Namespace ${one.name} answers again.`);
    }
    wasStale.set(one.id, one.isStale);
  }
  for (const entity of store.pairing?.entities ?? []) {
    const before = wasHealth.get(entity.path);
    if (before !== undefined && before !== entity.state) announce(`${entity.path} is ${entity.state}.`);
    wasHealth.set(entity.path, entity.state);
  }
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
  if (name === "faults") return faultsView(id);
  if (name === "e" && place(id) && path) return entityView(place(id), path, tab ?? "messages");
  return overviewView();
}

function navigate() {
  if (!store.session) return;
  const parts = address();
  const wanted = parts.slice(0, 3).join("\n");
  if (view !== null && wanted === shownAddress && view.tab) {
    view.tab(parts[3] ?? "messages");
    return;
  }
  shownAddress = wanted;
  view = choose();
  document.title = `${view.title} · PairBus`;
  put(main, view.element);
  const here = parts[0] === "e" || !parts.length ? "#/" : `#/${parts[0]}`;
  for (const anchor of header.anchors) attribute(anchor, "aria-current", anchor.getAttribute("href") === here ? "page" : null);
  update();
  const shown = view;
  void shown.ask?.().then(() => shown === view && update());
  if (document.activeElement === document.body || document.activeElement?.closest("#top")) main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function update() {
  drawNotices();
  view?.update();
}

async function beat() {
  clearTimeout(timer);
  const begun = performance.now();
  const asked = askAll();
  const refused = await Promise.race([asked, new Promise((resolve) => setTimeout(resolve, INTERVAL_MS))]);
  await view?.ask?.();
  if (refused && store.session) return signIn("Your session has ended. Sign in again.");
  if (!store.session) return undefined;
  update();
  timer = setTimeout(beat, Math.max(100, INTERVAL_MS - (performance.now() - begun)));
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
  view = null;
  shownAddress = null;
  top.hidden = true;
  put(notices);
  delete notices.dataset.shown;
  document.title = "Sign in · PairBus";
  put(main, signInView(start, reason));
  main.querySelector("input")?.focus();
}

window.addEventListener("hashchange", navigate);
setInterval(() => store.session && update(), STALE_MS / 6);

try {
  start(await api.session());
} catch (error) {
  signIn(error.status === 401 ? undefined : error.message);
}
