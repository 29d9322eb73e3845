// Every namespace with its entities: counts by state, rates, sizes.

import { spark } from "./chart.js";
import { clusterPart } from "./cluster.js";
import { h, icon, keyed, put, text } from "./dom.js";
import { bytes, count, plural, rate } from "./format.js";
import { store } from "./store.js";

const STATES = ["active", "scheduled", "dead_letter"];
const LABELS = { active: "Active", scheduled: "Scheduled", dead_letter: "Dead-letter" };
const ROWS_FIRST = 200;

export function addressOf(place, path, tab) {
  return `#/e/${encodeURIComponent(place.id)}/${encodeURIComponent(path)}${tab ? `/${tab}` : ""}`;
}

export function tile(name) {
  const value = h("strong", { class: "number" }, "–");
  const note = h("span", { class: "note" });
  return { element: h("div", { class: "tile" }, h("span", { class: "label" }, name), value, note), value, note };
}

// Queues first; then each topic with its subscriptions below it.
function inOrder(rows) {
  const key = (row) => `${row.kind === "queue" ? 0 : 1}${row.path.toLowerCase()}`;
  return rows.map((row) => [key(row), row]).sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row);
}

function row(place) {
  return (first) => {
    const link = h("a", { href: addressOf(place, first.path) });
    const badges = h("span", { class: "badges" });
    const cells = STATES.map((state) => h("td", { class: `number ${state}`, "data-label": LABELS[state] }));
    const line = spark();
    const inRate = h("td", { class: "number", "data-label": "In / s" });
    const outRate = h("td", { class: "number", "data-label": "Out / s" });
    const size = h("td", { class: "number size", "data-label": "Size" });
    const element = h(
      "tr",
      { class: first.kind },
      h("th", { scope: "row" }, h("div", { class: "cell" }, icon(first.kind), h("span", { class: "name" }, link), badges)),
      h("td", { class: "trend" }, line.element),
      cells,
      inRate,
      outRate,
      size,
    );
    text(link, first.kind === "subscription" ? first.path.replace(/\/subscriptions\//i, " › ") : first.path);
    let shownBadges = null;
    function update(data) {
      STATES.forEach((state, index) => {
        text(cells[index], count(data[state]));
        cells[index].classList.toggle("zero", !data[state]);
        cells[index].classList.toggle("alarm", state === "dead_letter" && data[state] > 0);
      });
      const latest = place.latest(data.path);
      text(inRate, rate(latest.inRate));
      text(outRate, data.kind === "topic" ? "–" : rate(latest.outRate));
      inRate.classList.toggle("zero", !latest.inRate);
      outRate.classList.toggle("zero", !latest.outRate);
      text(size, data.size_bytes === null ? "–" : bytes(data.size_bytes));
      size.classList.toggle("zero", !data.size_bytes);
      line.update(place.points(data.path), performance.now());
      const lost = data.transfer_dead_letter;
      const wanted = `${data.sessions}|${data.status}|${data.deferred}|${lost}`;
      if (wanted !== shownBadges) {
        shownBadges = wanted;
        put(
          badges,
          h("span", { class: "badge" }, data.kind),
          data.sessions && h("span", { class: "badge" }, "sessions"),
          data.status !== "Active" && h("span", { class: "badge warn" }, data.status),
          data.deferred > 0 && h("span", { class: "badge", title: "Deferred messages; they are among the active ones" }, `${count(data.deferred)} deferred`),
          lost > 0 && h("span", { class: "badge bad" }, plural(lost, "transfer dead letter")),
        );
      }
    }
    return { element, update };
  };
}

function table(place, caption) {
  const body = h("tbody");
  const heads = ["Active", "Scheduled", "Dead-letter", "In / s", "Out / s", "Size"];
  const all = h("button", { type: "button", class: "quiet", on: { click: () => { isWhole = true; draw(); } } });
  const more = h("div", { class: "more", hidden: true }, all);
  const element = h(
    "div",
    {},
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      h(
        "table",
        { class: "entities" },
        h("caption", { class: "unseen" }, caption),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Entity"), h("th", { scope: "col", class: "trend" }, "Trend"), heads.map((name) => h("th", { scope: "col", class: "number" }, name)))),
        body,
      ),
    ),
    more,
  );
  let rows = [];
  let isWhole = false;
  function draw() {
    const isCut = !isWhole && rows.length > ROWS_FIRST;
    keyed(body, isCut ? rows.slice(0, ROWS_FIRST) : rows, (one) => one.path, row(place));
    more.hidden = !isCut;
    if (isCut) text(all, `Show all ${count(rows.length)}`);
  }
  return { element, update: (wanted) => { rows = inOrder(wanted); draw(); } };
}

function namespaceCard(place, filter) {
  const tiles = { active: tile("Active"), dead: tile("Dead-letter"), in: tile("In / s"), out: tile("Out / s"), connections: tile("Connections"), size: tile("Stored") };
  const plain = table(place, `Entities of ${place.name}`);
  const parked = table(place, `Backlog queues in ${place.name}`);
  const backlogTitle = h("span");
  const backlog = h("details", { class: "backlog" }, h("summary", {}, icon("detour"), backlogTitle), parked.element);
  const nothing = h("div", { class: "empty" });
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const state = h("span");
  const more = h("p", { class: "soft pad" });
  const cluster = clusterPart(place);
  const element = h(
    "section",
    { class: "card namespace", "aria-label": `Namespace ${place.name}` },
    h("header", {}, h("div", { class: "title" }, h("h2", {}, place.name), place.role && h("span", { class: "role" }, place.role)), h("span", { class: "state" }, dot, state)),
    h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    cluster.element,
    nothing,
    plain.element,
    backlog,
    more,
  );
  let wasOpened = false;
  function drawState() {
    element.classList.toggle("stale", place.isStale && place.overview !== null);
    const isWaiting = place.overview === null && !place.error;
    dot.className = `dot ${isWaiting ? "" : place.isStale ? "bad" : "good"}`;
    text(state, isWaiting ? "Asking…" : !place.isStale ? "Serving" : place.isRefused ? "Key refused" : "Not answering");
  }
  function drawNothing(overview, wanted) {
    const code = h("code", {}, "pairbus entity create queue orders");
    const unseen = h("p", {}, "It may be one of those that are not listed: ", h("a", { href: addressOf(place, wanted) }, `open ${wanted}`), ".");
    if (!overview.entities.length) put(nothing, icon("empty"), h("h2", {}, "No entities yet"), h("p", {}, "Create a queue with an administration client, or with ", code, "."));
    else put(nothing, icon("empty"), h("h2", {}, "No entity of that name"), overview.not_shown ? unseen : h("p", {}, "Clear the filter to see all of them."));
  }
  function update() {
    drawState();
    const overview = place.overview;
    if (overview === null) {
      put(nothing, icon("clock"), h("h2", {}, place.error ? "No answer yet" : "Asking…"), place.error && h("p", {}, "The page keeps asking, and shows the namespace as soon as it answers."));
      plain.element.hidden = backlog.hidden = more.hidden = true;
      return;
    }
    cluster.update();
    const rows = overview.entities;
    const sum = (key) => rows.reduce((total, one) => total + (one[key] ?? 0), 0);
    const latest = place.latest("");
    text(tiles.active.value, count(sum("active")));
    text(tiles.active.note, sum("scheduled") ? `and ${count(sum("scheduled"))} scheduled` : "");
    text(tiles.dead.value, count(sum("dead_letter")));
    tiles.dead.element.classList.toggle("alarm", sum("dead_letter") > 0);
    text(tiles.dead.note, sum("transfer_dead_letter") ? `and ${count(sum("transfer_dead_letter"))} in transfer` : "");
    text(tiles.in.value, rate(latest.inRate));
    text(tiles.out.value, rate(latest.outRate));
    text(tiles.connections.value, count(overview.connections));
    text(tiles.connections.note, overview.links === null ? "" : plural(overview.links, "link"));
    text(tiles.size.value, bytes(sum("size_bytes")));
    const wanted = filter();
    const shown = rows.filter((one) => one.path.toLowerCase().includes(wanted));
    const others = shown.filter((one) => !one.backlog);
    const queues = shown.filter((one) => one.backlog);
    plain.update(others);
    plain.element.hidden = others.length === 0;
    const isEmpty = shown.length === 0;
    nothing.hidden = !isEmpty;
    if (isEmpty) drawNothing(overview, wanted);
    backlog.hidden = queues.length === 0;
    if (queues.length) {
      const waiting = queues.reduce((total, one) => total + one.active + one.scheduled, 0);
      text(backlogTitle, `${plural(queues.length, "backlog queue")} · ${waiting ? `${plural(waiting, "message")} waiting for the primary` : "empty"}`);
      backlog.classList.toggle("busy", waiting > 0);
      if (waiting && !wasOpened) backlog.open = wasOpened = true;
      parked.update(queues);
    }
    text(more, overview.not_shown ? `${plural(overview.not_shown, "further entity", "further entities")} not listed: type the path of one into the filter to open it.` : "");
    more.hidden = !overview.not_shown;
  }
  return { element, update, tick: drawState };
}

export function overviewView() {
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter entities by name", spellcheck: "false" });
  const filter = () => search.value.trim().toLowerCase();
  const cards = store.places.map((place) => namespaceCard(place, filter));
  const update = () => cards.forEach((card) => card.update());
  search.addEventListener("input", update);
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("h1", {}, "Overview"), search), h("div", { class: "namespaces" }, cards.map((card) => card.element)));
  return { title: "Overview", element, update, tick: () => cards.forEach((card) => card.tick()) };
}
