// What is said aloud and what pops up: a few sentences, each heard, none twice in a row.

import { h, icon, text } from "./dom.js";

const GAP_MS = 1200;
const WAITING_MAX = 4;
const live = document.getElementById("live");
const toasts = document.getElementById("toasts");
const waiting = [];
let isSpeaking = false;
let said = null;

function speak() {
  const next = waiting.shift();
  isSpeaking = next !== undefined;
  if (!isSpeaking) return;
  // A change of text is what is read: the same sentence again must be a change too.
  text(live, "");
  said = next;
  requestAnimationFrame(() => said === next && text(live, next));
  setTimeout(speak, GAP_MS);
}

export function announce(message) {
  if (waiting.at(-1) === message) return;
  waiting.push(message);
  if (waiting.length > WAITING_MAX) waiting.shift();
  if (!isSpeaking) speak();
}

// What was said to one session is not for the next, whose key may see less.
export function silence() {
  waiting.length = 0;
  said = null;
  text(live, "");
  toasts.replaceChildren();
}

export function toast(message, kind = "done") {
  const element = h("div", { class: `toast ${kind}` }, icon(kind === "done" ? "healthy" : "warning"), h("span", {}, message));
  toasts.append(element);
  announce(message);
  setTimeout(() => element.remove(), kind === "done" ? 5000 : 9000);
  while (toasts.children.length > 3) toasts.firstElementChild.remove();
}
