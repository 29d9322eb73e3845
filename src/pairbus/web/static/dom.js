// Elements from plain values. Text goes in as text, always: nothing here ever parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "value" && "value" in element) {
      element.value = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function text(element, value) {
  const wanted = String(value ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

// One child per row, found again by its key, so that focus and open details survive an update.
export function keyed(parent, rows, keyOf, create) {
  const kept = (parent.kept ??= new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const row of rows) {
    const key = keyOf(row);
    seen.add(key);
    let item = kept.get(key);
    if (item === undefined) {
      item = create(row);
      kept.set(key, item);
    }
    item.update(row);
    if (item.element !== place) parent.insertBefore(item.element, place);
    else place = place.nextElementSibling;
  }
  for (const [key, item] of kept) {
    if (!seen.has(key)) {
      item.element.remove();
      kept.delete(key);
    }
  }
}

const PATHS = {
  queue: "M3 5h10M3 8h10M3 11h6",
  topic: "M3 8h4m0 0 5-4M7 8l5 4M7 8h5",
  subscription: "M3 5h7a3 3 0 0 1 0 6H7m0 0 2-2m-2 2 2 2",
  healthy: "m4 8.5 2.5 2.5L12 5.5",
  warning: "M8 3 2.5 12.5h11L8 3Zm0 4v2.5m0 1.6v.2",
  failed: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM6 6l4 4m0-4-4 4",
  detour: "M3 4h3.5c3 0 1.5 8 5 8H13m0 0-2-2m2 2-2 2",
  home: "M3 8l5-4.5L13 8M5 7v5.5h6V7",
  ping: "M8 8h.01M5.5 5.5a3.5 3.5 0 0 0 0 5m5-5a3.5 3.5 0 0 1 0 5M3.6 3.6a6.2 6.2 0 0 0 0 8.8m8.8-8.8a6.2 6.2 0 0 1 0 8.8",
  info: "M8 7v4m0-6v.2M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Z",
  back: "M9.5 3.5 5 8l4.5 4.5",
  sessions: "M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Zm-5 5a5 5 0 0 1 10 0",
  clock: "M8 4.5V8l2.5 1.5M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Z",
  empty: "M2.5 9.5h3l1 2h3l1-2h3m-11 0 2-6h7l2 6v3h-11v-3Z",
  lock: "M5 7V5.5a3 3 0 0 1 6 0V7m-7 0h8v6H4V7Z",
};

export function icon(name) {
  const shape = s("path", { d: PATHS[name] ?? PATHS.info });
  return s("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, shape);
}
