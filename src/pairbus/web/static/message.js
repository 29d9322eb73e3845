// One message: a line, and behind it everything about it; bodies as text, JSON or bytes.

import { h, icon, put, text } from "./dom.js";
import { bytes, clock, count, duration, hexLines, indentedJson, plural, precise, stamp } from "./format.js";
import { toast } from "./live.js";

const WHOLE_MAX = 1_048_576;

function bodyBox(first, whole) {
  const box = h("pre", { tabindex: 0, role: "region", "aria-label": "Message body" });
  const note = h("span", { class: "soft" });
  const segments = h("div", { class: "segments", role: "group", "aria-label": "Show body as" });
  const all = h("button", { type: "button", class: "small", hidden: true, on: { click: showAll } }, "Show all of it");
  function draw(body) {
    const json = body.text !== null && !body.is_cut && /^\s*[[{]/.test(body.text) ? indentedJson(body.text) : null;
    const modes = [];
    if (json !== null) modes.push(["JSON", () => json]);
    if (body.text !== null) modes.push(["Text", () => body.text]);
    modes.push(["Hex", () => hexLines(body.hex)]);
    const buttons = modes.map(([name, shown]) => h("button", { type: "button", "aria-pressed": "false", on: { click: () => choose(name, shown) } }, name));
    function choose(name, shown) {
      text(box, shown());
      box.classList.toggle("hex", name === "Hex");
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
    }
    put(segments, buttons);
    choose(...modes[0]);
    text(note, body.size === 0 ? "no body" : `${bytes(body.size)}${body.is_cut ? `, the first ${bytes(body.hex.length / 2)} shown` : ""}`);
    all.hidden = !body.is_cut || body.hex.length / 2 >= WHOLE_MAX;
  }
  async function showAll() {
    try {
      const body = await whole();
      if (body) draw(body);
      else toast("The message has gone meanwhile.", "failed");
    } catch (refusal) {
      toast(refusal.message, "failed");
    }
    box.focus();
  }
  draw(first);
  return h("div", { class: "body" }, h("div", { class: "bodyhead" }, h("h3", {}, "Body"), note, all, segments), box);
}

function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function properties(list, more) {
  if (!list?.length) return null;
  return h(
    "div",
    {},
    h("h3", {}, "Application properties"),
    h("table", { class: "properties" }, h("tbody", {}, list.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, one.value ?? "null"), h("td", { class: "soft" }, one.type))))),
    more ? h("p", { class: "soft" }, `${count(more)} more not shown`) : null,
  );
}

function parts(message, whole) {
  return [
    message.unreadable && h("p", { class: "error" }, `This is not a message as AMQP knows them: ${message.unreadable}`),
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
    bodyBox(message.body, whole),
  ];
}

function original(restored, whole) {
  if (restored.error) {
    return h("div", { class: "restored bad" }, h("h3", {}, icon("warning"), "Cannot be delivered to its destination"), h("p", {}, restored.error));
  }
  return h(
    "div",
    { class: "restored" },
    h("h3", {}, icon("home"), "As it will be delivered"),
    facts([
      ["Goes to", h("strong", {}, restored.path)],
      ["Detoured because", restored.detoured_because],
      ["First sent", restored.first_sent_at ? stamp(restored.first_sent_at) : null],
      ["Time to live", restored.time_to_live_ms ? duration(restored.time_to_live_ms) : null],
      ["Scheduled for", restored.scheduled_at ? stamp(restored.scheduled_at) : null],
    ]),
    parts(restored, whole),
  );
}

function shownOf(message) {
  return message.original && !message.original.error ? message.original : message;
}

function preview(message) {
  const body = shownOf(message).body;
  if (body.size === 0) return "(no body)";
  return body.text === null ? `${body.hex.slice(0, 64)}…` : body.text.slice(0, 160);
}

function detailOf(data, actions) {
  const whole = async () => (await actions.whole(data))?.body ?? null;
  const wholeOriginal = async () => (await actions.whole(data))?.original?.body ?? null;
  return [
    data.dead_letter_reason !== null && h("div", { class: "reason" }, h("h3", {}, icon("warning"), h("span", {}, "Dead-lettered: ", data.dead_letter_reason)), data.dead_letter_description && h("p", {}, data.dead_letter_description), data.dead_letter_source && h("p", { class: "soft" }, `from ${data.dead_letter_source}`)),
    facts([
      ["Sequence number", count(data.sequence_number)],
      ["Enqueued", stamp(data.enqueued_at)],
      ["Scheduled for", data.state === "scheduled" ? stamp(data.scheduled_at) : null],
      ["Expires", data.expires_at ? stamp(data.expires_at) : null],
      ["Failed deliveries", count(data.delivery_count)],
      ["Size", bytes(data.size)],
    ]),
    data.original ? original(data.original, wholeOriginal) : parts(data, whole),
    data.original && h("details", { class: "wire" }, h("summary", {}, "As it lies in the backlog"), parts(data, whole)),
    (actions.redrive || actions.remove) && h("div", { class: "buttons" }, actions.redrive && h("button", { type: "button", on: { click: () => actions.redrive(data) } }, "Redrive"), actions.remove && h("button", { class: "danger quiet", type: "button", on: { click: () => actions.remove(data) } }, "Delete…")),
  ];
}

export function messageItem(actions) {
  return (first) => {
    const detail = h("div", { class: "detail" });
    const badges = h("span", { class: "badges" });
    const element = h(
      "details",
      { class: "message" },
      h(
        "summary",
        {},
        h("span", { class: "number seq" }, count(first.sequence_number)),
        h("span", { class: "what" }, h("span", { class: "id" }, shownOf(first).message_id ?? "no id"), h("span", { class: "preview" }, preview(first))),
        badges,
        h("time", { datetime: precise(first.enqueued_at), title: stamp(first.enqueued_at) }, clock(first.enqueued_at)),
      ),
      detail,
    );
    let data = first;
    let isFilled = false;
    element.addEventListener("toggle", () => {
      if (!element.open || isFilled) return;
      isFilled = true;
      put(detail, detailOf(data, actions));
    });
    function update(row) {
      data = row;
      const wanted = `${row.state}|${row.is_locked}|${row.delivery_count}`;
      if (badges.dataset.shown === wanted) return;
      badges.dataset.shown = wanted;
      put(
        badges,
        row.state !== "active" && h("span", { class: "badge" }, row.state),
        row.is_locked && h("span", { class: "badge warn" }, icon("lock"), "locked"),
        row.delivery_count > 0 && h("span", { class: "badge" }, plural(row.delivery_count, "earlier delivery", "earlier deliveries")),
        row.dead_letter_reason !== null && h("span", { class: "badge bad" }, row.dead_letter_reason.slice(0, 40)),
      );
    }
    return { element, update };
  };
}
