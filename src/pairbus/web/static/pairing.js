// The pair: both sides, every entity's health with its timers, the backlog, the way home, the bill, what happened when.

import { post } from "./api.js";
import { refresh, toast } from "./app.js";
import { chart } from "./chart.js";
import { attribute, h, icon, keyed, put, text } from "./dom.js";
import { clock, count, duration, plural, precise, rate } from "./format.js";
import { addressOf } from "./overview.js";
import { sendForm } from "./send.js";
import { backlogDepth, backlogRows, STALE_MS, store } from "./store.js";

const HEALTH = {
  healthy: ["good", "healthy", "Healthy", "sends go to the primary"],
  suspect: ["warn", "warning", "Suspect", "sends fail; failing over soon"],
  "failed over": ["accent", "detour", "Failed over", "sends go to the backlog"],
  refusing: ["bad", "failed", "Refusing", "the entity is gone; sends are refused"],
};
const KINDS = {
  paired: ["healthy", "Paired"],
  queue_created: ["queue", "Queue created"],
  property_difference: ["warning", "Difference"],
  extra_queue: ["queue", "Extra queue"],
  queue_unusable: ["warning", "Queue unusable"],
  suspect: ["warning", "Suspect"],
  failed_over: ["detour", "Failed over"],
  ping_sent: ["ping", "Ping"],
  ping_answered: ["ping", "Ping answered"],
  refused: ["failed", "Refused"],
  recovered: ["healthy", "Recovered"],
  queue_evicted: ["warning", "Queue out of rotation"],
  queue_readmitted: ["healthy", "Queue back"],
  syphon_started: ["home", "Syphon started"],
  syphon_stopped: ["home", "Syphon stopped"],
  drained: ["home", "Drained"],
  set_aside: ["warning", "Set aside"],
  closed: ["info", "Closed"],
  faulted: ["failed", "Faulted"],
};
const OPERATIONS = { send: "sends", receive: "receives", empty_receive: "idle receives", settle: "settlements", ping: "pings", peek: "peeks", renew: "renewals", schedule: "scheduled", cancel: "cancelled", delete: "deletes", session: "sessions", management: "management" };

function side(place) {
  const state = h("span", { class: "state" });
  const depth = h("strong", { class: "number" });
  const note = h("span", { class: "soft" });
  const element = h("div", { class: "side" }, h("span", { class: "role" }, place.role), h("h3", {}, place.name), state, h("p", {}, depth, " ", note));
  function update() {
    put(state, h("i", { class: `dot ${place.isStale ? "bad" : "good"}`, "aria-hidden": "true" }), place.isStale ? (place.answeredAt === null ? "Not answering" : `Silent for ${duration(Math.floor(place.ageMs / 1000) * 1000)}`) : "Serving");
    attribute(element, "class", `side ${place.isStale ? "down" : ""}`);
    const rows = place.overview?.entities ?? [];
    const isBacklog = place.role === "secondary";
    const waiting = rows.filter((row) => row.backlog === isBacklog).reduce((sum, row) => sum + row.active + row.scheduled, 0);
    text(depth, count(waiting));
    text(note, isBacklog ? "in the backlog" : "in its entities");
  }
  return { element, update };
}

function healthTable() {
  const body = h("tbody");
  const none = h("div", { class: "empty" }, icon("info"), h("h3", {}, "No sends through the pair yet"), h("p", {}, "An entity appears here with its first send. Programs of your own join when they run with ", h("code", {}, "PAIRBUS_JOURNAL"), " set as ", h("code", {}, "pairbus up"), " prints it."));
  const element = h("div", {}, none, h("div", { class: "scroll" }, h("table", { class: "health" }, h("caption", { class: "unseen" }, "Health of each entity"), h("thead", {}, h("tr", {}, ["Entity", "Health", "For", "Next", "Parked", "Pings", "Why"].map((name) => h("th", { scope: "col", class: ["Parked", "Pings"].includes(name) ? "number" : "" }, name)))), body)));
  function update(rows, passed) {
    none.hidden = rows.length > 0;
    element.lastElementChild.hidden = rows.length === 0;
    keyed(body, rows, (one) => one.path, () => {
      const cells = { path: h("th", { scope: "row" }), health: h("td", { "data-label": "Health" }), since: h("td", { "data-label": "For" }), next: h("td", { "data-label": "Next" }), parked: h("td", { class: "number", "data-label": "Parked" }), pings: h("td", { class: "number", "data-label": "Pings" }), why: h("td", { class: "why", "data-label": "Why" }) };
      let shown = null;
      function one(row) {
        text(cells.path, row.path);
        const [tone, symbol, name, meaning] = HEALTH[row.state] ?? ["", "info", row.state, ""];
        if (shown !== row.state) {
          shown = row.state;
          put(cells.health, h("span", { class: `pill ${tone}`, title: meaning }, icon(symbol), name));
        }
        text(cells.since, duration(row.since_age_ms + passed));
        const due = row.failover_in_ms !== null ? ["fails over in", row.failover_in_ms] : row.next_ping_in_ms !== null ? ["ping in", row.next_ping_in_ms] : null;
        text(cells.next, due ? `${due[0]} ${duration(due[1] - passed)}` : "–");
        text(cells.parked, count(row.parked));
        text(cells.pings, count(row.pings));
        text(cells.why, row.why || "–");
      }
      return { element: h("tr", {}, Object.values(cells)), update: one };
    });
  }
  return { element, update };
}

function timeline() {
  const list = h("ol", { class: "timeline" });
  const pings = h("input", { type: "checkbox", id: "show-pings" });
  const element = h("div", {}, h("div", { class: "tools" }, h("span", { class: "soft" }, "newest first"), h("label", { for: "show-pings", class: "check" }, pings, "Show pings")), list);
  function update(events) {
    const shown = events.filter((event) => pings.checked || !event.kind.startsWith("ping_")).slice(-60).reverse();
    keyed(list, shown, (event) => event.id, (event) => {
      const [symbol, name] = KINDS[event.kind] ?? ["info", event.kind.replaceAll("_", " ")];
      const row = h("li", { class: `event ${event.kind}${event.is_loud ? " loud" : ""}` }, h("time", { datetime: precise(event.at_ms) }, clock(event.at_ms)), icon(symbol), h("div", {}, h("strong", {}, name), " ", h("span", { class: "subject" }, event.subject), h("p", { class: "soft" }, event.text)));
      return { element: row, update: () => undefined };
    });
  }
  return { element, update };
}

function costMeter() {
  const total = h("strong", { class: "number big" });
  const money = h("span", { class: "soft" });
  const body = h("tbody");
  const element = h("div", {}, h("p", { class: "bignumber" }, total, h("span", {}, "billed operations since the brokers started")), h("p", {}, money), h("div", { class: "scroll" }, h("table", { class: "plain" }, h("caption", { class: "unseen" }, "Operations by stage"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Operation"), h("th", { scope: "col", class: "number" }, "Primary stage"), h("th", { scope: "col", class: "number" }, "Backlog stage"))), body)));
  function update() {
    const sums = new Map();
    let all = 0;
    for (const place of store.places) {
      for (const stage of ["primary", "backlog"]) {
        for (const [name, units] of Object.entries(place.overview?.operations?.[stage].by_operation ?? {})) {
          const row = sums.get(name) ?? { name, primary: 0, backlog: 0 };
          row[stage] += units;
          all += units;
          sums.set(name, row);
        }
      }
    }
    text(total, count(all));
    const price = store.pairing?.price;
    text(money, price ? `${price.currency} ${((all * price.per_million) / 1_000_000).toFixed(4)} at ${price.currency} ${price.per_million} per million (${price.label})` : "Operations of 64 KB begun, as the service bills them.");
    keyed(body, [...sums.values()].sort((a, b) => b.primary + b.backlog - a.primary - a.backlog), (row) => row.name, (row) => {
      const cells = [h("td", { class: "number" }), h("td", { class: "number" })];
      return { element: h("tr", {}, h("th", { scope: "row" }, OPERATIONS[row.name] ?? row.name), cells), update: (one) => [one.primary, one.backlog].forEach((value, index) => { text(cells[index], count(value)); cells[index].classList.toggle("zero", !value); }) };
    });
  }
  return { element, update };
}

function syphonCard() {
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Brought home" });
  const line = h("p", { class: "bignumber" });
  const facts = h("dl", { class: "facts" });
  const element = h("div", { class: "home" }, line, bar, facts);
  function update(statistics, waiting) {
    const parked = statistics.restored + waiting;
    bar.hidden = parked === 0;
    bar.value = parked ? statistics.restored / parked : 0;
    put(line, h("strong", { class: "number big" }, count(statistics.restored)), h("span", {}, parked ? `home, ${waiting ? `${count(waiting)} still in the backlog` : "and the backlog is empty"}` : "brought home; nothing was parked"));
    const rows = [["Rate", `${rate(statistics.drain_rate_per_s)} / s`], ["Oldest waiting", statistics.oldest_undrained_age_ms === null ? "–" : duration(statistics.oldest_undrained_age_ms)], ["Set aside", count(statistics.set_aside)], ["In doubt", count(statistics.in_doubt)], ["Receives", count(statistics.receives)]];
    put(facts, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
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
    text(result, `Told to the sender: ${where}.`);
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
  const flow = h("div", { class: "flow", role: "status" });
  const health = healthTable();
  const depth = chart("Backlog depth", [{ name: "messages", style: "depth", of: (point) => point.active }], count);
  const syphon = syphonCard();
  const cost = costMeter();
  const events = timeline();
  const stale = h("p", { class: "error", hidden: true });
  const send = store.places.every((place) => place.can("Send")) ? sendThrough() : null;
  const element = h(
    "div",
    { class: "view" },
    h("div", { class: "head" }, h("h1", {}, "Pairing")),
    stale,
    h("div", { class: "card pair" }, sides[0]?.element, flow, sides[1]?.element),
    card("Health", health.element, "health-title"),
    h("div", { class: "charts" }, depth.element, card("The way home", syphon.element, "syphon-title")),
    h("div", { class: "charts" }, card("What happened", events.element, "timeline-title"), card("Cost meter", cost.element, "cost-title")),
    send?.element,
  );
  let shownFlow = null;
  function update() {
    sides.forEach((one) => one.update());
    cost.update();
    send?.update();
    const pairing = store.pairing;
    if (!pairing) return;
    const age = performance.now() - store.pairingAt;
    stale.hidden = age < STALE_MS;
    text(stale, `What is shown of the pairing is ${duration(Math.floor(age / 1000) * 1000)} old.`);
    health.update(pairing.entities, age);
    depth.update(store.pairingHistory, performance.now());
    syphon.update(pairing.statistics, backlogDepth());
    events.update(pairing.events);
    const over = pairing.entities.filter((one) => one.state === "failed over").length;
    const suspect = pairing.entities.filter((one) => one.state === "suspect").length;
    const waiting = backlogDepth();
    const wanted = over ? ["detour", "accent", `${plural(over, "entity").replace("entitys", "entities")} failed over`, "Sends go to the backlog"] : suspect ? ["warning", "warn", "The primary is suspect", "Sends fail; failover is near"] : waiting ? ["home", "accent", "On the way home", `${plural(waiting, "message")} left in the backlog`] : ["healthy", "good", "All healthy", "Sends go to the primary"];
    if (shownFlow !== wanted.join()) {
      shownFlow = wanted.join();
      put(flow, h("span", { class: `flowicon ${wanted[1]}` }, icon(wanted[0])), h("strong", {}, wanted[2]), h("span", { class: "soft" }, wanted[3]));
    }
  }
  return { title: "Pairing", element, update };
}

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
    if (!rows.length) {
      put(body, icon("detour"), h("h3", {}, "This namespace is not part of a pair"), h("p", {}, "A paired client keeps sending when its primary is gone: it parks messages in backlog queues of a secondary namespace, and brings them home later."), h("p", {}, h("code", {}, "pairbus up"), " starts a pair on this machine, and a page that shows both sides."));
      put(list);
      return;
    }
    const primaries = [...new Set(rows.map(({ row }) => row.path.split("/")[0]))];
    put(body, icon("detour"), h("h3", {}, `The backlog of ${primaries.join(", ")}`), h("p", {}, `This namespace is a secondary: ${plural(rows.length, "backlog queue")}, ${plural(backlogDepth(), "message")} waiting to go home.`), h("p", {}, "Health, timers and the timeline live in the paired programs; ", h("code", {}, "pairbus up"), " shows them beside both namespaces."));
    put(list, rows.map(({ place, row }) => h("li", { class: "card" }, h("a", { href: addressOf(place, row.path) }, row.path), h("span", { class: "number" }, count(row.active + row.scheduled)), row.dead_letter > 0 && h("span", { class: "badge bad" }, `${count(row.dead_letter)} set aside`))));
  }
  return { title: "Pairing", element, update };
}

export function pairingView() {
  return store.session.pairing ? pairedView() : aloneView();
}
