// The pair: both sides, every entity's health with its timers, the backlog, the drain, the bill, the events.

import { post } from "./api.js";
import { refresh } from "./app.js";
import { toast } from "./live.js";
import { chart } from "./chart.js";
import { attribute, h, icon, keyed, put, text } from "./dom.js";
import { age, clock, count, duration, plural, precise, rate, stamp } from "./format.js";
import { addressOf } from "./overview.js";
import { sendForm } from "./send.js";
import { backlogDepth, backlogRows, oldestInBacklog, STALE_MS, store } from "./store.js";

// Kinds and states come from other programs' journals: looked up in maps, for an object knows words of its own.
const HEALTH = new Map(Object.entries({
  healthy: ["good", "healthy", "Healthy", "sends go to the primary"],
  suspect: ["warn", "warning", "Suspect", "no answer; failing over soon"],
  "failed over": ["accent", "detour", "Failed over", "sends go to the backlog"],
  refusing: ["bad", "failed", "Refusing", "the entity is gone; sends are refused"],
}));
// What the page's server says of the pair, see pair_summary.py.
const SUMMARIES = new Map(Object.entries({
  "not answering": ["failed", "bad"],
  "failed over": ["detour", "accent"],
  suspect: ["warning", "warn"],
  draining: ["home", "accent"],
  waiting: ["warning", "warn"],
  unknown: ["info", ""],
  healthy: ["healthy", "good"],
}));
const KINDS = new Map(Object.entries({
  paired: ["healthy", "Paired"],
  queue_created: ["queue", "Queue created"],
  property_difference: ["warning", "Difference"],
  extra_queue: ["queue", "Extra queue"],
  queue_unusable: ["warning", "Queue unusable"],
  suspect: ["warning", "Suspect"],
  failed_over: ["detour", "Failed over"],
  ping_sent: ["ping", "Ping"],
  ping_answered: ["ping", "Ping answered"],
  ping_failed: ["failed", "Ping failed"],
  refused: ["failed", "Refused"],
  recovered: ["healthy", "Recovered"],
  backlog_lost: ["failed", "Backlog queue deleted"],
  queue_evicted: ["warning", "Queue out of rotation"],
  queue_readmitted: ["healthy", "Queue back"],
  syphon_started: ["home", "Syphon started"],
  syphon_stopped: ["home", "Syphon stopped"],
  syphon_refused: ["warning", "Syphon refused"],
  drained: ["home", "Drained"],
  set_aside: ["warning", "Dead-lettered"],
  fence_stands: ["detour", "Sessions fenced"],
  fence_lifted: ["healthy", "Fences lifted"],
  fence_timed_out: ["warning", "Fence timed out"],
  fence_overtaken: ["warning", "Overtaken"],
  order_unknown: ["warning", "Order unknown"],
  order_given_up: ["warning", "Order given up"],
  spool_used: ["detour", "Spool used"],
  spool_replayed: ["home", "Spool replayed"],
  spool_undeliverable: ["warning", "Kept in the spool"],
  spool_unusable: ["failed", "Spool not usable"],
  closed: ["info", "Closed"],
  faulted: ["failed", "Faulted"],
}));
const TITLES = new Map([
  ["Oldest", "How long ago the oldest message was sent that waits in the backlog, or in a spool"],
  ["Fenced", "Sessions whose messages go on being parked, because earlier ones are still in the backlog"],
]);
const OPERATIONS = { send: "sends", receive: "receives", empty_receive: "idle receives", settle: "settlements (not billed)", ping: "pings", peek: "peeks", renew: "renewals", schedule: "scheduled", cancel: "cancelled", delete: "deletes", session: "sessions", management: "management" };

function side(place) {
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const state = h("span");
  const depth = h("strong", { class: "number" });
  const note = h("span", { class: "soft" });
  const element = h("div", { class: "side" }, h("div", { class: "title" }, h("h2", {}, place.name), h("span", { class: "role" }, place.role)), h("span", { class: "state" }, dot, state), h("p", {}, depth, " ", note));
  function update() {
    attribute(dot, "class", `dot ${place.isStale ? "bad" : "good"}`);
    text(state, place.isStale ? (place.answeredAt === null ? "Not answering" : `Silent for ${age(place.ageMs)}`) : "Serving");
    attribute(element, "class", `side${place.isStale ? " down" : ""}${place.isStale && place.overview !== null ? " stale" : ""}`);
    const rows = place.overview?.entities ?? [];
    const isBacklog = place.role === "secondary";
    const waiting = rows.filter((row) => row.backlog === isBacklog).reduce((sum, row) => sum + row.active + row.scheduled, 0);
    text(depth, place.overview === null ? "–" : count(waiting));
    text(note, `${isBacklog ? "in the backlog" : "in its entities"}${place.isStale && place.overview !== null ? " when last seen" : ""}`);
  }
  return { element, update };
}

function nextOf(row, passed) {
  const [due, soon, now] = row.failover_in_ms !== null ? [row.failover_in_ms, "fails over in", "failing over"] : row.next_ping_in_ms !== null ? [row.next_ping_in_ms, "ping in", "pinging"] : [null];
  if (due === null) return "–";
  if (due > passed) return `${soon} ${duration(due - passed)}`;
  return passed < STALE_MS ? now : "–"; // whether it happened is not known
}

function agesOf(row) {
  return [["backlog", row.oldest_parked_age_ms], ["spool", row.oldest_spooled_age_ms]].filter(([, since]) => since !== null);
}

function oldestOf(row, passed) {
  return agesOf(row).map(([where, since]) => (where === "spool" ? `${age(since + passed)} in a spool` : age(since + passed))).join(", ") || "–";
}

function oldestTitle(row, passed) {
  return agesOf(row).map(([where, since]) => `oldest message in the ${where}: ${age(since + passed)}`).join("; ") || null;
}

function healthTable() {
  const body = h("tbody");
  const none = h("div", { class: "empty" }, icon("info"), h("h2", {}, "No open client has sent through the pair"), h("p", {}, "An entity appears here with its first send, and stays until the programs that sent to it close their clients. Programs of your own join when they run with ", h("code", {}, "PAIRBUS_JOURNAL"), " set as ", h("code", {}, "pairbus up"), " prints it."));
  const element = h("div", {}, none, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Health of each entity" }, h("table", { class: "health" }, h("caption", { class: "unseen" }, "Health of each entity"), h("thead", {}, h("tr", {}, ["Entity", "Health", "For", "Next", "Parked", "Oldest", "Fenced", "Pings", "Why"].map((name) => h("th", { scope: "col", class: ["Parked", "Oldest", "Fenced", "Pings"].includes(name) ? "number" : "", title: TITLES.get(name) ?? null }, name)))), body)));
  let passed = 0; // ms since the rows were told; a row is made once and updated often
  function update(rows, passedNow) {
    passed = passedNow;
    none.hidden = rows.length > 0;
    element.lastElementChild.hidden = rows.length === 0;
    keyed(body, rows, (one) => one.path, () => {
      const cells = { path: h("th", { scope: "row" }), health: h("td", { "data-label": "Health" }), since: h("td", { "data-label": "For" }), next: h("td", { "data-label": "Next" }), parked: h("td", { class: "number", "data-label": "Parked" }), oldest: h("td", { class: "number", "data-label": "Oldest" }), fenced: h("td", { class: "number", "data-label": "Fenced" }), pings: h("td", { class: "number", "data-label": "Pings" }), why: h("td", { class: "why", "data-label": "Why" }, h("span", { class: "clamp" })) };
      let shown = null;
      function one(row) {
        text(cells.path, row.path);
        const [tone, symbol, name, meaning] = HEALTH.get(row.state) ?? ["", "info", row.state, ""];
        if (shown !== row.state) {
          shown = row.state;
          put(cells.health, h("span", { class: `pill ${tone}`, title: meaning }, icon(symbol), name));
        }
        text(cells.since, age(row.since_age_ms + passed));
        text(cells.next, nextOf(row, passed));
        text(cells.parked, row.spooled ? `${count(row.parked)} + ${count(row.spooled)} in a spool` : count(row.parked));
        text(cells.oldest, oldestOf(row, passed));
        attribute(cells.oldest, "title", oldestTitle(row, passed));
        text(cells.fenced, count(row.fenced_sessions));
        cells.fenced.classList.toggle("zero", !row.fenced_sessions);
        text(cells.pings, count(row.pings));
        text(cells.why.firstElementChild, row.why || "–");
        attribute(cells.why.firstElementChild, "title", row.why || null);
      }
      return { element: h("tr", {}, Object.values(cells)), update: one };
    });
  }
  return { element, update };
}

function timeline() {
  const list = h("ol", { class: "timeline", tabindex: 0, "aria-label": "What happened, newest first" });
  const none = h("p", { class: "soft" }, "Nothing yet.");
  const pings = h("input", { type: "checkbox", id: "show-pings" });
  const element = h("div", {}, h("div", { class: "tools" }, h("span", { class: "soft" }, "newest first"), h("label", { for: "show-pings", class: "check" }, pings, "Show pings")), none, list);
  let told = [];
  let areSeveral = false;
  pings.addEventListener("change", () => update(told));
  function update(events) {
    told = events;
    const shown = events.filter((event) => pings.checked || !event.kind.startsWith("ping_")).slice(-60).reverse();
    none.hidden = shown.length > 0;
    list.hidden = shown.length === 0;
    // Of several clients each writes its own events: without their names the same event would show twice.
    areSeveral = new Set(events.map((event) => event.factory)).size > 1;
    keyed(list, shown, (event) => event.id, (event) => {
      const [symbol, name] = KINDS.get(event.kind) ?? ["info", event.kind.replaceAll("_", " ")];
      const client = h("span", { class: "soft", hidden: true }, ` · client ${event.factory}`);
      const row = h("li", { class: `event ${KINDS.has(event.kind) ? event.kind : ""}` }, h("time", { datetime: precise(event.at_ms), title: stamp(event.at_ms) }, clock(event.at_ms)), icon(symbol), h("div", {}, h("strong", {}, name), " ", h("span", { class: "subject" }, event.subject), client, h("p", { class: "soft" }, event.text)));
      return { element: row, update: () => { client.hidden = !areSeveral || !event.factory; } };
    });
  }
  return { element, update };
}

// As the price list has it: "standard tier, uksouth, after the first 13,000,000 a month".
function priced(units, price) {
  const amount = (units * price.per_million) / 1_000_000;
  const shown = amount === 0 ? "0" : amount < 0.0001 ? "less than 0.0001" : amount < 1 ? amount.toFixed(4) : amount.toFixed(2);
  return `${price.currency} ${shown}, at ${price.currency} ${price.per_million.toFixed(2)} per million operations (${price.label}).`;
}

function costMeter() {
  const total = h("strong", { class: "number big" });
  const money = h("p", { class: "soft small" });
  const body = h("tbody");
  let unknown = new Set(); // stages of namespaces that never answered this page: nothing is known of them, not even 0
  const missing = h("p", { class: "error small", hidden: true });
  const element = h("div", {}, h("p", { class: "bignumber" }, total, h("span", {}, "billed operations since the brokers started")), missing, money, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Operations by stage" }, h("table", { class: "plain" }, h("caption", { class: "unseen" }, "Operations by stage"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Operation"), h("th", { scope: "col", class: "number" }, "Primary stage"), h("th", { scope: "col", class: "number" }, "Backlog stage"))), body)));
  function update() {
    const sums = new Map();
    let all = 0;
    for (const place of store.places) {
      for (const stage of ["primary", "backlog"]) {
        for (const [name, units] of Object.entries(place.overview?.operations?.[stage].by_operation ?? {})) {
          const row = sums.get(name) ?? { name, primary: 0, backlog: 0 };
          row[stage] += units;
          if (name !== "settle") all += units; // part of a receive in the model of the bill
          sums.set(name, row);
        }
      }
    }
    const silent = store.places.filter((place) => !place.overview?.operations);
    unknown = new Set(silent.map((place) => (place.role === "secondary" ? "backlog" : "primary")));
    text(total, silent.length === store.places.length ? "–" : count(all));
    missing.hidden = silent.length === 0;
    text(missing, `Without ${silent.map((place) => place.name).join(" and ")}: no answer since this page was opened.`);
    const price = store.pairing?.price;
    text(money, price ? priced(all, price) : "Operations of 64 KB begun, as the service bills them.");
    keyed(body, [...sums.values()].sort((a, b) => b.primary + b.backlog - a.primary - a.backlog), (row) => row.name, (row) => {
      const cells = [h("td", { class: "number" }), h("td", { class: "number" })];
      return { element: h("tr", {}, h("th", { scope: "row" }, OPERATIONS[row.name] ?? row.name), cells), update: (one) => ["primary", "backlog"].forEach((stage, index) => { text(cells[index], one[stage] || !unknown.has(stage) ? count(one[stage]) : "–"); cells[index].classList.toggle("zero", !one[stage]); }) };
    });
  }
  return { element, update };
}

function syphonCard() {
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Delivered to the primary" });
  const home = h("strong", { class: "number big" });
  const line = h("span");
  const values = new Map(["Rate", "Oldest waiting", "Dead-lettered", "Unconfirmed sends", "Receives"].map((name) => [name, h("dd", { class: "number" })]));
  const facts = h("dl", { class: "facts" }, [...values].map(([name, value]) => h("div", {}, h("dt", {}, name), value)));
  const element = h("div", { class: "home" }, h("p", { class: "bignumber" }, home, line), bar, facts);
  function update(statistics, waiting) {
    const parked = statistics.restored + waiting;
    bar.hidden = parked === 0;
    bar.value = parked ? statistics.restored / parked : 0;
    text(home, count(statistics.restored));
    text(line, parked ? `delivered, ${count(waiting)} waiting` : "delivered; nothing was parked");
    text(values.get("Rate"), `${rate(statistics.drain_rate_per_s)} / s`);
    text(values.get("Oldest waiting"), age(oldestInBacklog()));
    text(values.get("Dead-lettered"), count(statistics.set_aside));
    text(values.get("Unconfirmed sends"), count(statistics.in_doubt));
    text(values.get("Receives"), count(statistics.receives));
    values.get("Dead-lettered").classList.toggle("alarm", statistics.set_aside > 0);
  }
  return { element, update };
}

function card(title, content, id) {
  return h("section", { class: "card", "aria-labelledby": id }, h("header", {}, h("h2", { id }, title)), h("div", { class: "pane" }, content));
}

function sendThrough() {
  const target = h("select", { id: "pair-target" });
  const result = h("p", { class: "soft", role: "status" });
  const entities = () => (store.places.find((one) => one.role === "primary")?.overview?.entities ?? []).filter((row) => row.kind !== "subscription" && !row.backlog);
  const form = sendForm("/$page/api/pairing/send", () => ({ path: target.value, kind: entities().find((row) => row.path === target.value)?.kind ?? "queue" }), () => Boolean(entities().find((row) => row.path === target.value)?.sessions), (done) => {
    const where = done.parked ? `parked in the backlog (${plural(done.parked, "message")})` : `accepted by the primary (${plural(done.sent, "message")})`;
    text(result, `The sender's answer: ${where}.`);
    toast(`Sent through the pair: ${where}.`);
    refresh();
  }, { canDelay: false });
  let shown = null;
  function update() {
    const paths = entities().map((row) => row.path);
    if (shown !== paths.join()) {
      shown = paths.join();
      const chosen = target.value;
      put(target, paths.map((path) => h("option", { value: path }, path)));
      if (paths.includes(chosen)) target.value = chosen;
    }
    form.update();
  }
  target.addEventListener("change", () => form.update());
  const element = h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Send through the pair")), h("div", { class: "pane" }, h("p", { class: "soft" }, "As a paired program would: to the primary while it answers, to the backlog when it does not."), h("div", { class: "field target" }, h("label", { for: "pair-target" }, "To"), target), form.element, result));
  return { element, update };
}

function pairedView() {
  const sides = store.places.map(side);
  const flow = h("div", { class: "flow" });
  const health = healthTable();
  const depth = chart("Backlog depth", [{ name: "messages", style: "depth", of: (point) => point.active }], count);
  const syphon = syphonCard();
  const cost = costMeter();
  const events = timeline();
  const old = h("p", { class: "error", hidden: true });
  const cards = { health: card("Health", health.element, "health-title"), drain: card("Drain", syphon.element, "syphon-title"), events: card("What happened", events.element, "timeline-title"), cost: card("Cost meter", cost.element, "cost-title") };
  const send = store.places.every((place) => place.can("Send")) ? sendThrough() : null;
  const element = h(
    "div",
    { class: "view" },
    h("div", { class: "head" }, h("h1", {}, "Pairing")),
    old,
    h("div", { class: "card pair" }, sides[0]?.element, flow, sides[1]?.element),
    cards.health,
    h("div", { class: "charts fill" }, depth.element, cards.drain),
    h("div", { class: "charts" }, cards.events, cards.cost),
    send?.element,
  );
  let shownFlow = null;
  // Of data that are too old to be true the page says so, wherever they stand.
  function drawAge(passed) {
    const isOld = passed >= STALE_MS;
    const isBacklogOld = store.places.some((place) => place.role === "secondary" && place.isStale);
    old.hidden = !isOld;
    text(old, `What is shown of the pairing is ${age(passed)} old.`);
    for (const one of [cards.health, cards.events]) one.classList.toggle("stale", isOld);
    for (const one of [depth.element, cards.drain]) one.classList.toggle("stale", isOld || isBacklogOld);
    cards.cost.classList.toggle("stale", store.places.some((place) => place.isStale && place.overview !== null));
  }
  function drawFlow(passed) {
    const { about, title, detail } = store.pairing.summary;
    const [symbol, tone] = SUMMARIES.get(about) ?? ["info", ""];
    const wanted = passed < STALE_MS ? [symbol, tone, title, detail] : ["info", "", "Not known now", `${age(passed)} ago: ${title}.`];
    if (shownFlow !== wanted.join()) {
      shownFlow = wanted.join();
      put(flow, h("span", { class: `flowicon ${wanted[1]}` }, icon(wanted[0])), h("strong", {}, wanted[2]), h("span", { class: "soft" }, wanted[3]));
    }
  }
  // Timers and ages, which go on between two answers.
  function tick() {
    sides.forEach((one) => one.update());
    if (!store.pairing) return;
    const passed = performance.now() - store.pairingAt;
    drawAge(passed);
    drawFlow(passed);
    health.update(store.pairing.entities, passed);
  }
  function update() {
    tick();
    cost.update();
    send?.update();
    const pairing = store.pairing;
    if (!pairing) return;
    depth.update(store.pairingHistory, performance.now());
    syphon.update(pairing.statistics, backlogDepth());
    events.update(pairing.events);
  }
  return { title: "Pairing", element, update, tick };
}

const STEPS = [
  ["warning", "The primary stops answering", "The entity is suspect. Its sends wait, or fail if the client is set so."],
  ["detour", "Sends go to the backlog", "They are parked in queues of a secondary namespace, and the program continues."],
  ["home", "The backlog is delivered", "Pings show that the primary is back, and a syphon delivers the parked messages to it."],
];

function aloneView() {
  const list = h("ul", { class: "queues" });
  const body = h("div", { class: "card empty" });
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("h1", {}, "Pairing")), body, list);
  let shown = null;
  function update() {
    const rows = backlogRows();
    const wanted = JSON.stringify(rows.map(({ row }) => [row.path, row.active, row.dead_letter]));
    if (wanted === shown) return;
    shown = wanted;
    if (store.session.is_pair || store.session.scope) {
      // The key sees too little to tell; saying "there is no pair" would be a guess.
      put(
        body,
        icon("lock"),
        h("h2", {}, store.session.is_pair ? "Your key may not see the pair" : "Your key sees one entity only"),
        h("p", {}, store.session.is_pair ? "These two namespaces are a pair. Its health, backlog and timeline are shown to access rules that hold for the whole of both namespaces." : `The key belongs to ${store.session.scope}. Backlog queues and the state of a pair are shown to access rules of the whole namespace.`),
        h("p", {}, "Sign in with such a rule to see more."),
      );
      put(list);
      return;
    }
    if (!rows.length) {
      put(
        body,
        icon("detour"),
        h("h2", {}, "This namespace holds no backlog"),
        h("p", {}, "It is not the secondary of a pair. Only the paired programs know whether it is a primary: a primary looks like any other namespace."),
        h("p", {}, "A paired client keeps sending when its primary namespace does not answer."),
        h("ol", { class: "steps" }, STEPS.map(([symbol, title, line]) => h("li", {}, icon(symbol), h("strong", {}, title), h("span", {}, line)))),
        h("p", {}, h("code", {}, "pairbus up"), " starts a pair on this machine, and a page that shows both sides."),
      );
      put(list);
      return;
    }
    const primaries = [...new Set(rows.map(({ row }) => row.path.split("/")[0]))];
    put(body, icon("detour"), h("h2", {}, `The backlog of ${primaries.join(", ")}`), h("p", {}, `This namespace is a secondary: ${plural(rows.length, "backlog queue")}, ${plural(backlogDepth(), "message")} waiting for the primary.`), h("p", {}, "Health, timers and the timeline live in the paired programs; ", h("code", {}, "pairbus up"), " shows them beside both namespaces."));
    put(list, rows.map(({ place, row }) => h("li", { class: "card" }, h("a", { href: addressOf(place, row.path) }, row.path), h("span", { class: "number" }, count(row.active + row.scheduled)), row.dead_letter > 0 && h("span", { class: "badge bad" }, `${count(row.dead_letter)} dead-lettered`))));
  }
  return { title: "Pairing", element, update };
}

export function pairingView() {
  return store.session.pairing ? pairedView() : aloneView();
}
