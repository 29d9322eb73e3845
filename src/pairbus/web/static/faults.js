// The fault switchboard: failures on request, each with an end.

import { get, post } from "./api.js";
import { toast } from "./live.js";
import { h, icon, keyed, put, text } from "./dom.js";
import { duration } from "./format.js";
import { store } from "./store.js";

const KINDS = [
  ["refuse", "Refuse", "Sends are rejected."],
  ["delay", "Delay", "Sends are stored, and answered late."],
  ["drop_acknowledgements", "Drop acknowledgements", "Sends are stored, and never answered."],
  ["throttle", "Throttle", "Sends fail: the server is busy."],
  ["fill", "Fill", "Sends fail: the quota is exceeded."],
  ["lose_locks", "Lose locks", "Receivers lose their locks."],
  ["cut", "Cut", "Connections are cut; of an entity, its links."],
  ["black_hole", "Black hole", "The broker reads everything and answers nothing; of an entity, nothing on its links."],
];
const NAMES = new Map(KINDS.map(([id, name]) => [id, name]));

function board(place) {
  const list = h("ul", { class: "faultlist" });
  const none = h("p", { class: "allquiet" }, icon("healthy"), "No fault is on.");
  const entity = h("select", { id: `fault-entity-${place.id}` });
  const seconds = h("input", { id: `fault-seconds-${place.id}`, type: "number", min: 1, max: 86400, value: 30 });
  const times = h("input", { id: `fault-count-${place.id}`, type: "number", min: 1, placeholder: "no limit" });
  const delay = h("input", { id: `fault-delay-${place.id}`, type: "number", min: 1, max: 600000, value: 2000 });
  const delayField = h("div", { class: "field", hidden: true }, h("label", { for: delay.id }, "Delay (milliseconds)"), delay);
  const clear = h("button", { type: "button", on: { click: () => change("faults/clear", {}, "All faults are off.") } }, "Switch all off");
  const radios = KINDS.map(([id, name, what], index) => {
    const input = h("input", { type: "radio", name: `kind-${place.id}`, id: `kind-${place.id}-${id}`, value: id });
    input.checked = index === 0;
    input.addEventListener("change", () => { delayField.hidden = input.value !== "delay"; });
    return { input, element: h("label", { class: "choice", for: input.id }, input, h("span", {}, h("strong", {}, name), h("small", {}, what))) };
  });
  let faults = [];
  let at = 0;

  async function change(name, wish, told) {
    try {
      faults = (await post(`${place.base}/${name}`, wish)).faults;
      at = performance.now();
      toast(told);
      update();
      if (document.activeElement === document.body) list.closest("section").querySelector("button[type=submit]").focus();
    } catch (refusal) {
      toast(refusal.status === 0 ? "No answer." : refusal.message, "failed");
    }
  }

  function submit(event) {
    event.preventDefault();
    const kind = radios.find((one) => one.input.checked).input.value;
    const wish = { kind, entity: entity.value || null, duration_ms: Number(seconds.value) * 1000 };
    if (times.value) wish.count = Number(times.value);
    if (kind === "delay") wish.delay_ms = Number(delay.value);
    void change("faults", wish, `${NAMES.get(kind)} is on for ${entity.value || "the whole namespace"}.`);
  }

  async function ask() {
    try {
      faults = (await get(`${place.base}/faults`)).faults;
      at = performance.now();
    } catch {
      // The notice at the top says that the namespace does not answer.
    }
  }

  let shownPaths = null;
  function update() {
    const paths = (place.overview?.entities ?? []).map((row) => row.path);
    if (shownPaths !== paths.join()) {
      shownPaths = paths.join();
      const chosen = entity.value;
      put(entity, h("option", { value: "" }, "the whole namespace"), paths.map((path) => h("option", { value: path }, path)));
      entity.value = paths.includes(chosen) ? chosen : "";
    }
    none.hidden = faults.length > 0;
    clear.hidden = faults.length === 0;
    const passed = performance.now() - at;
    keyed(list, faults.map((fault, index) => ({ ...fault, index })), (one) => `${one.index}|${one.kind}|${one.entity}`, (first) => {
      const left = h("span", { class: "number" });
      const element = h("li", {}, icon("warning"), h("strong", {}, NAMES.get(first.kind) ?? first.kind), h("span", {}, first.entity ?? "the whole namespace"), left);
      return { element, update: (one) => text(left, `${duration(one.remaining_ms - passed)} left${one.count !== null ? `, ${one.count} times` : ""}`) };
    });
  }
  const element = h(
    "section",
    { class: "card" },
    h("header", {}, h("div", { class: "title" }, h("h2", {}, place.name), place.role && h("span", { class: "role" }, place.role)), clear),
    h("div", { class: "pane quietable" }, none, list),
    h(
      "form",
      { class: "pane faultform", on: { submit } },
      h("fieldset", {}, h("legend", {}, "Switch a fault on"), h("div", { class: "choices" }, radios.map((one) => one.element))),
      h("div", { class: "grid" }, h("div", { class: "field" }, h("label", { for: entity.id }, "Where"), entity), h("div", { class: "field" }, h("label", { for: seconds.id }, "For (seconds)"), seconds), h("div", { class: "field" }, h("label", { for: times.id }, "At most (times)"), times), delayField),
      h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Switch on")),
    ),
  );
  return { element, ask, update };
}

export function faultsView() {
  const places = store.places.filter((place) => place.faults && place.can("Manage"));
  const boards = places.map(board);
  const none = h("div", { class: "card empty" }, icon("info"), h("h2", {}, "The switchboard is not offered"), h("p", {}, "Start the broker with ", h("code", {}, "--faults"), ", and sign in with a rule that may manage."));
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("div", {}, h("h1", {}, "Faults"), h("p", { class: "soft" }, "See what your programs do on a bad day. Every fault ends by itself."))), boards.length ? h("div", { class: "namespaces" }, boards.map((one) => one.element)) : none);
  return { title: "Faults", element, ask: () => Promise.all(boards.map((one) => one.ask())), update: () => boards.forEach((one) => one.update()), tick: () => boards.forEach((one) => one.update()) };
}
