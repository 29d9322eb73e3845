// Looking into a queue: pages of messages; their fate.

import { get, post } from "./api.js";
import { refresh } from "./app.js";
import { confirmPlain, confirmTyped, working } from "./dialog.js";
import { h, icon, keyed, put, text } from "./dom.js";
import { count, plural } from "./format.js";
import { announce, toast } from "./live.js";
import { messageItem } from "./message.js";

const PAGE = 20;
const PATIENCE_MS = 2000;
const EMPTY = new Map([
  ["main", ["No messages", "Send one from the Send tab, or from a program."]],
  ["dead-letter", ["Nothing is dead-lettered", "Messages that fail too often, expire or are refused by their receiver come here."]],
  ["transfer-dead-letter", ["Nothing is dead-lettered in transfer", "Messages that could not be forwarded to where they should go come here."]],
]);
const SUFFIX = new Map([["main", ""], ["dead-letter", "/$DeadLetterQueue"], ["transfer-dead-letter", "/$Transfer/$DeadLetterQueue"]]);
const COUNTED = new Map([["dead-letter", "dead_letter"], ["transfer-dead-letter", "transfer_dead_letter"]]);

const LOCKED = new Map([["main", "locks"], ["dead-letter", "dead_letter_locks"], ["transfer-dead-letter", "transfer_dead_letter_locks"]]);

function amountIn(data, where) {
  return COUNTED.has(where) ? data[COUNTED.get(where)] : data.active + data.scheduled;
}

export function messagesPane(place, path, where, entity) {
  const list = h("div", { class: "messages" });
  const nothing = h("div", { class: "empty", hidden: true });
  const error = h("p", { class: "error", role: "alert" });
  const range = h("span", { class: "soft range" });
  const newer = h("button", { type: "button", on: { click: () => turn(-1) } }, "Earlier");
  const older = h("button", { type: "button", on: { click: () => turn(1) } }, "Later");
  const again = h("button", { type: "button", on: { click: () => load(true) } }, "Refresh");
  let incarnation = null; // of the queue whose messages are shown: numbers begin again when it is made again
  const redriveAll = h("button", { type: "button", hidden: true, on: { click: () => redrive(null) } }, "Redrive all…");
  const purgeAll = h("button", { class: "danger quiet", type: "button", hidden: true, on: { click: purge } }, "Purge…");
  const element = h("div", { class: "pane" }, h("div", { class: "tools" }, range, h("div", { class: "buttons" }, again, redriveAll, purgeAll)), error, nothing, list, h("div", { class: "tools pages" }, newer, older));
  const starts = [0];
  const act = { redrive: where === "dead-letter" && place.can("Send") ? (message) => redrive([message.sequence_number]) : null, remove: place.can("Listen") ? remove : null, whole };
  let next = null;
  let asked = 0;
  let shownCount = null; // the count that the list was read for; null: read it again at the next count
  let shown = null; // how many messages the list shows; null: it could not be read
  let isBusy = false;

  function address(from, rest) {
    return `${place.base}/messages?path=${encodeURIComponent(path)}&place=${where}&from=${from}&${rest}`;
  }

  async function whole(message) {
    const found = await get(address(message.sequence_number, "whole=1"));
    return found.messages.find((one) => one.sequence_number === message.sequence_number) ?? null;
  }

  function drawEmpty(isEmpty) {
    nothing.hidden = !isEmpty;
    if (!isEmpty) return;
    const [title, line] = starts.length > 1 ? ["No later messages", "Go back to the earlier ones."] : EMPTY.get(where);
    put(nothing, icon("empty"), h("h2", {}, title), h("p", {}, line));
  }

  // After an action the count on the page is older than the list, so the list is read once more when the next count comes.
  async function load(isWanted = false, amount = null) {
    if (isBusy) {
      shownCount = null;
      return;
    }
    isBusy = true;
    shownCount = amount;
    asked = performance.now();
    try {
      const found = await get(address(starts.at(-1), `count=${PAGE}`));
      incarnation = found.incarnation;
      next = found.next;
      shown = found.messages.length;
      keyed(list, found.messages, (one) => one.sequence_number, messageItem(act));
      text(error, "");
      drawEmpty(found.messages.length === 0);
      const first = found.messages[0];
      text(range, first ? `Messages ${count(first.sequence_number)} – ${count(found.messages.at(-1).sequence_number)}, page ${starts.length}` : "");
      newer.disabled = starts.length === 1;
      older.disabled = next === null;
      newer.parentElement.hidden = newer.disabled && older.disabled;
    } catch (refusal) {
      shown = null;
      if (refusal.status === 403) {
        nothing.hidden = false;
        put(nothing, icon("lock"), h("h2", {}, "Looking into a queue needs the right to listen"), h("p", {}, "Sign in with a rule that holds Listen on this entity."));
        keyed(list, [], (one) => one, messageItem(act));
        again.hidden = newer.parentElement.hidden = true;
      } else if (refusal.status !== 0 || isWanted) {
        // A namespace that is silent is told of at the top of the page already.
        text(error, refusal.status === 0 ? "No answer; what is shown may be old." : refusal.message);
      }
    } finally {
      isBusy = false;
    }
  }

  async function turn(step) {
    if (step > 0 && next !== null) starts.push(next);
    else if (step < 0 && starts.length > 1) starts.pop();
    await load(true);
    announce(range.textContent || "No messages");
    if (document.activeElement === document.body) (step > 0 ? newer : older).focus();
  }

  // What had the focus may be gone with its message.
  function keepFocus() {
    if (document.activeElement === document.body || document.activeElement === null) (list.querySelector("summary") ?? again).focus();
  }

  // The broker does a bounded piece at a time, so that nobody waits for it; the rest follows, up to what there was.
  async function carryOut(name, wish, done, title, amount) {
    let progress = null;
    let sum = 0;
    let held = 0;
    let isFailed = false;
    try {
      for (;;) {
        const step = await post(`${place.base}/${name}`, { path, place: where, incarnation, ...wish });
        sum += step[done];
        held = step.held;
        if (wish.numbers || !step[done] || !step.left || sum >= amount || progress?.isCancelled()) break;
        progress ??= working(title);
        progress.update(`${count(sum)} of ${plural(amount, "message")}`);
      }
    } catch (refusal) {
      isFailed = true;
      toast(refusal.status === 0 ? "No answer: look again before you repeat it." : refusal.message, "failed");
    } finally {
      progress?.close();
    }
    await load();
    refresh();
    keepFocus();
    return isFailed && !sum ? null : { sum, held };
  }

  async function redrive(numbers) {
    const amount = entity()?.dead_letter ?? 0;
    const question = `${plural(amount, "message")} will be sent to ${path} again, as new messages.`;
    if (numbers === null && !(await confirmPlain("Redrive all dead letters?", question, "Redrive all"))) return;
    const done = await carryOut("redrive", { numbers }, "redriven", "Redriving…", amount);
    if (done) toast(`${plural(done.sum, "message")} sent to ${path} again${done.held ? `, ${count(done.held)} held by a receiver` : ""}.`);
  }

  async function remove(message) {
    if (!(await confirmPlain("Delete this message?", `Message ${message.sequence_number} will be deleted. This cannot be undone.`, "Delete", "danger"))) return;
    const done = await carryOut("purge", { numbers: [message.sequence_number] }, "purged", "", 1);
    if (done) toast(done.sum ? "The message is deleted." : "A receiver has locked the message, so it was not deleted.");
  }

  async function purge() {
    const data = entity();
    const wanted = `${data?.path ?? path}${SUFFIX.get(where)}`;
    const locked = data ? data[LOCKED.get(where)] : 0;
    const amount = data ? amountIn(data, where) - locked : 0;
    const lines = [`${plural(amount, "message")} will be deleted. This cannot be undone.`];
    if (where === "main" && data?.scheduled) lines.push(`${count(data.scheduled)} of them are scheduled for later.`);
    if (locked) lines.push(`${plural(locked, "message")} that a receiver has locked ${locked === 1 ? "stays" : "stay"}.`);
    if (!(await confirmTyped(where === "main" ? "Purge this queue?" : "Purge these dead letters?", lines, wanted, "Purge"))) return;
    const done = await carryOut("purge", { confirm: wanted }, "purged", "Purging…", amount);
    if (done) toast(`${plural(done.sum, "message")} purged.`);
  }

  // Messages that leave and come back between two counts leave the count as it was, but not the list.
  function isApart(amount) {
    if (shown === null || starts.length > 1) return false;
    return next === null ? shown !== amount : shown > amount;
  }

  function update(data) {
    if (!data) return;
    const amount = amountIn(data, where);
    // A button that goes leaves the focus to one that stays.
    if (amount === 0 && (document.activeElement === purgeAll || document.activeElement === redriveAll)) again.focus();
    purgeAll.hidden = !place.can("Listen") || amount === 0;
    redriveAll.hidden = where !== "dead-letter" || !place.can("Send") || !place.can("Listen") || amount === 0;
    const isOpen = list.querySelector("details[open]") !== null;
    if ((amount !== shownCount || isApart(amount)) && !isOpen && performance.now() - asked > PATIENCE_MS && place.can("Listen")) void load(false, amount);
  }
  return { element, update, shown: () => load() };
}
