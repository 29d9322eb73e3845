// Looking into a queue: pages of messages, bodies as text, JSON or bytes; their fate.

import { get, post } from "./api.js";
import { refresh, toast } from "./app.js";
import { confirmPlain, confirmTyped } from "./dialog.js";
import { h, icon, keyed, put, text } from "./dom.js";
import { bytes, clock, count, duration, hexLines, plural, precise } from "./format.js";

const PAGE = 20;
const PATIENCE_MS = 2000;

function pretty(source) {
  try {
    return JSON.stringify(JSON.parse(source), null, 2);
  } catch {
    return null;
  }
}

function bodyBox(body) {
  const json = body.text !== null && !body.is_cut && /^\s*[[{]/.test(body.text) ? pretty(body.text) : null;
  const modes = [];
  if (json !== null) modes.push(["JSON", json]);
  if (body.text !== null) modes.push(["Text", body.text]);
  modes.push(["Hex", hexLines(body.hex)]);
  const box = h("pre", { tabindex: 0, "aria-label": "Message body" });
  const buttons = modes.map(([name, shown]) => h("button", { type: "button", "aria-pressed": "false", on: { click: () => choose(name, shown) } }, name));
  function choose(name, shown) {
    text(box, shown);
    box.classList.toggle("hex", name === "Hex");
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
  }
  choose(...modes[0]);
  const note = body.size === 0 ? "no body" : `${bytes(body.size)}${body.is_cut ? `, the first ${bytes(body.hex.length / 2)} shown` : ""}`;
  return h("div", { class: "body" }, h("div", { class: "bodyhead" }, h("h4", {}, "Body"), h("span", { class: "soft" }, note), h("div", { class: "segments", role: "group", "aria-label": "Show body as" }, buttons)), box);
}

function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function properties(list, more) {
  if (!list?.length) return null;
  return h(
    "div",
    {},
    h("h4", {}, "Application properties"),
    h("table", { class: "properties" }, h("tbody", {}, list.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, one.value ?? "null"), h("td", { class: "soft" }, one.type))))),
    more ? h("p", { class: "soft" }, `${count(more)} more not shown`) : null,
  );
}

function parts(message) {
  return [
    facts([
      ["Message id", message.message_id],
      ["Session", message.session_id],
      ["Subject", message.subject],
      ["Correlation id", message.correlation_id],
      ["Content type", message.content_type],
      ["To", message.to],
      ["Reply to", message.reply_to],
    ]),
    properties(message.properties, message.properties_not_shown),
    bodyBox(message.body),
  ];
}

function original(message) {
  const restored = message.original;
  if (!restored) return null;
  if (restored.error) {
    return h("div", { class: "restored bad" }, h("h4", {}, icon("warning"), "Cannot be brought home"), h("p", {}, restored.error));
  }
  return h(
    "div",
    { class: "restored" },
    h("h4", {}, icon("home"), "As it will be when it is home"),
    facts([
      ["Goes to", h("strong", {}, restored.path)],
      ["Detoured because", restored.detoured_because],
      ["First sent", restored.first_sent_at ? precise(restored.first_sent_at) : null],
      ["Time to live", restored.time_to_live_ms ? duration(restored.time_to_live_ms) : null],
      ["Scheduled for", restored.scheduled_at ? precise(restored.scheduled_at) : null],
    ]),
    parts(restored),
  );
}

function preview(message) {
  const shown = message.original && !message.original.error ? message.original : message;
  const body = shown.body;
  if (body.size === 0) return "(no body)";
  return body.text === null ? `${body.hex.slice(0, 64)}…` : body.text.slice(0, 160);
}

function item(place, path, where, actions) {
  return (first) => {
    const detail = h("div", { class: "detail" });
    const summaryBadges = h("span", { class: "badges" });
    const shown = first.original && !first.original.error ? first.original : first;
    const element = h(
      "details",
      { class: "message" },
      h(
        "summary",
        {},
        h("span", { class: "number seq" }, count(first.sequence_number)),
        h("span", { class: "what" }, h("span", { class: "id" }, shown.message_id ?? "no id"), h("span", { class: "preview" }, preview(first))),
        summaryBadges,
        h("time", { datetime: precise(first.enqueued_at) }, clock(first.enqueued_at)),
      ),
      detail,
    );
    let data = first;
    let isFilled = false;
    function fillDetail() {
      isFilled = true;
      put(
        detail,
        first.dead_letter_reason !== null && h("div", { class: "reason" }, h("h4", {}, icon("warning"), "Dead-lettered: ", first.dead_letter_reason), first.dead_letter_description && h("p", {}, first.dead_letter_description), first.dead_letter_source && h("p", { class: "soft" }, `from ${first.dead_letter_source}`)),
        facts([
          ["Sequence number", count(data.sequence_number)],
          ["Enqueued", precise(data.enqueued_at)],
          ["Scheduled for", data.state === "scheduled" ? precise(data.scheduled_at) : null],
          ["Expires", data.expires_at ? precise(data.expires_at) : null],
          ["Failed deliveries", count(data.delivery_count)],
          ["Size", bytes(data.size)],
        ]),
        original(data) ?? parts(data),
        original(data) && h("details", { class: "wire" }, h("summary", {}, "As it lies in the backlog"), parts(data)),
        place.can("Listen") && h("div", { class: "buttons" }, where === "dead-letter" && place.can("Send") && h("button", { type: "button", on: { click: () => actions.redrive([data.sequence_number]) } }, "Redrive"), h("button", { class: "danger quiet", type: "button", on: { click: () => actions.remove(data) } }, "Delete")),
      );
    }
    element.addEventListener("toggle", () => element.open && !isFilled && fillDetail());
    function update(row) {
      data = row;
      const wanted = `${row.state}|${row.is_locked}|${row.delivery_count}`;
      if (summaryBadges.dataset.shown === wanted) return;
      summaryBadges.dataset.shown = wanted;
      put(summaryBadges, row.state !== "active" && h("span", { class: "badge" }, row.state), row.is_locked && h("span", { class: "badge warn" }, icon("lock"), "locked"), row.delivery_count > 0 && h("span", { class: "badge" }, `${row.delivery_count}× failed`), row.dead_letter_reason !== null && h("span", { class: "badge bad" }, row.dead_letter_reason.slice(0, 40)));
    }
    return { element, update };
  };
}

export function messagesPane(place, path, where, entity) {
  const list = h("div", { class: "messages" });
  const nothing = h("div", { class: "empty", hidden: true });
  const error = h("p", { class: "error", role: "alert" });
  const range = h("span", { class: "soft", role: "status" });
  const newer = h("button", { type: "button", on: { click: () => turn(-1) } }, "Earlier");
  const older = h("button", { type: "button", on: { click: () => turn(1) } }, "Later");
  const again = h("button", { type: "button", on: { click: () => load() } }, "Refresh");
  const redriveAll = h("button", { type: "button", hidden: true, on: { click: () => redrive(null) } }, "Redrive all");
  const purgeAll = h("button", { class: "danger quiet", type: "button", hidden: true, on: { click: purge } }, "Purge…");
  const element = h("div", { class: "pane" }, h("div", { class: "tools" }, range, h("div", { class: "buttons" }, again, redriveAll, purgeAll)), error, nothing, list, h("div", { class: "tools pages" }, newer, older));
  const starts = [0];
  let next = null;
  let asked = 0;
  let shownCount = null;
  let isBusy = false;
  const full = where === "dead-letter" ? (name) => `${name}/$DeadLetterQueue` : (name) => name;

  async function load() {
    if (isBusy) return;
    isBusy = true;
    asked = performance.now();
    try {
      const query = `path=${encodeURIComponent(path)}&place=${where}&from=${starts.at(-1)}&count=${PAGE}`;
      const found = await get(`${place.base}/messages?${query}`);
      next = found.next;
      keyed(list, found.messages, (one) => one.sequence_number, item(place, path, where, { redrive, remove }));
      text(error, "");
      const isEmpty = found.messages.length === 0;
      nothing.hidden = !isEmpty;
      if (isEmpty) put(nothing, icon("empty"), h("h3", {}, where === "dead-letter" ? "Nothing is dead-lettered" : starts.length > 1 ? "No later messages" : "No messages"), h("p", {}, where === "dead-letter" ? "Messages that fail too often, expire or are refused by their receiver come here." : "Send one from the Send tab, or from a program."));
      text(range, isEmpty ? "" : `Messages ${count(found.messages[0].sequence_number)} – ${count(found.messages.at(-1).sequence_number)}, page ${starts.length}`);
      newer.disabled = starts.length === 1;
      older.disabled = next === null;
      newer.parentElement.hidden = newer.disabled && older.disabled;
    } catch (refusal) {
      if (refusal.status === 403) {
        nothing.hidden = false;
        put(nothing, icon("lock"), h("h3", {}, "Looking into a queue needs the right to listen"), h("p", {}, "Sign in with a rule that holds Listen on this entity."));
        put(list);
        list.kept?.clear();
      } else {
        text(error, refusal.status === 0 ? "No answer; what is shown may be old." : refusal.message);
      }
    } finally {
      isBusy = false;
    }
  }

  function turn(step) {
    if (step > 0 && next !== null) starts.push(next);
    else if (step < 0 && starts.length > 1) starts.pop();
    void load();
  }

  async function act(name, wish, told) {
    try {
      toast(told(await post(`${place.base}/${name}`, { path, place: where, ...wish })));
    } catch (refusal) {
      toast(refusal.status === 0 ? "No answer: look again before you repeat it." : refusal.message, "failed");
    }
    await load();
    refresh();
  }

  async function redrive(numbers) {
    const question = `${plural(entity()?.dead_letter ?? 0, "message")} will be sent to ${path} again, as new messages.`;
    if (numbers === null && !(await confirmPlain("Redrive all dead letters?", question, "Redrive all"))) return;
    await act("redrive", { numbers }, (done) => `${plural(done.redriven, "message")} sent to ${path} again${done.held ? `, ${done.held} held by a receiver` : ""}.`);
  }

  async function remove(message) {
    if (!(await confirmPlain("Delete this message?", `Message ${message.sequence_number} will be gone for good.`, "Delete"))) return;
    await act("purge", { numbers: [message.sequence_number] }, (done) => (done.purged ? "The message is gone." : "A receiver holds the message: it decides."));
  }

  async function purge() {
    const wanted = full(entity()?.path ?? path);
    const amount = where === "dead-letter" ? entity()?.dead_letter : entity()?.active;
    if (!(await confirmTyped("Purge this queue?", [`${plural(amount ?? 0, "message")} will be gone for good. Nothing brings them back.`], wanted, "Purge"))) return;
    await act("purge", { confirm: wanted }, (done) => `${plural(done.purged, "message")} purged${done.left ? `, ${count(done.left)} left: purge again` : ""}.`);
  }

  function update(data) {
    if (!data) return;
    const amount = where === "dead-letter" ? data.dead_letter : data.active + data.scheduled + data.deferred;
    purgeAll.hidden = !place.can("Listen") || amount === 0;
    redriveAll.hidden = where !== "dead-letter" || !place.can("Send") || amount === 0;
    const isOpen = list.querySelector("details[open]") !== null;
    if (amount !== shownCount && !isOpen && performance.now() - asked > PATIENCE_MS && place.can("Listen")) {
      shownCount = amount;
      void load();
    }
  }
  return { element, update, shown: load };
}
