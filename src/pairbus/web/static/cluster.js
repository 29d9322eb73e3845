// The nodes that serve a namespace: who owns it, how long its lease lasts, what each node does, how far the standbys are.

import { attribute, h, icon, keyed, put, text } from "./dom.js";
import { bytes, count, duration, plural } from "./format.js";

const LABELS = ["State", "Address", "Seen", "Version"];

function node(first) {
  const role = h("span", { class: "badges" });
  const cells = LABELS.map((label) => h("td", { "data-label": label }));
  const [state, address, seen, version] = cells;
  const element = h("tr", {}, h("th", { scope: "row" }, h("div", { class: "cell" }, h("span", { class: "name" }, first.node), role)), cells);
  let shown = null;
  function update(data) {
    const wanted = `${data.role}|${data.asked}|${data.role === null && data.state}`;
    if (wanted !== shown) {
      shown = wanted;
      put(
        role,
        data.role === "owner" && h("span", { class: "badge accent" }, "owner"),
        data.role === "relay" && h("span", { class: "badge" }, "relay"),
        data.role === null && h("span", { class: `badge ${data.state === "gone" ? "bad" : "warn"}` }, data.state),
        data.asked && h("span", { class: "badge warn", title: "What an operator asked of this node" }, data.asked === "drain" ? "drained" : `asked to ${data.asked}`),
      );
    }
    text(state, data.role === null ? "does not report" : data.state);
    state.classList.toggle("alarm", data.role === null || data.state === "silent");
    text(address, data.address);
    text(seen, data.role === "owner" ? "now" : `${duration(data.seen_seconds_ago * 1000)} ago`);
    text(version, data.version);
  }
  return { element, update };
}

function standby(first) {
  const what = h("span", { class: "name" });
  const badges = h("span", { class: "badges" });
  const behind = h("span", { class: "soft" });
  const element = h("li", {}, icon("detour"), what, badges, behind);
  let shown = null;
  function update(data) {
    text(what, data.standby ?? "a standby");
    if (data.state !== shown) {
      shown = data.state;
      put(badges, data.state && h("span", { class: `badge ${data.state === "async" ? "warn" : ""}` }, data.state));
    }
    if (data.behind_bytes === null) text(behind, "its lag is shown to roles with pg_monitor");
    else text(behind, data.behind_bytes === 0 ? "has everything" : `${bytes(data.behind_bytes)} behind${data.behind_seconds === null ? "" : `, ${duration(data.behind_seconds * 1000)}`}`);
  }
  update(first);
  return { element, update };
}

// One namespace's cluster; hidden while it is none.
export function clusterPart(place) {
  const owner = h("strong");
  const facts = h("span", { class: "soft" });
  const lease = h("meter", { min: 0, max: 1, "aria-label": "Part of the lease that is left" });
  const body = h("tbody");
  const copies = h("p", { class: "soft" });
  const standbys = h("ul", { class: "standbys" });
  const element = h(
    "section",
    { class: "cluster", "aria-label": `Cluster of ${place.name}`, hidden: true },
    h("div", { class: "leased" }, icon("home"), h("span", {}, owner, " ", facts), lease),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `Nodes of ${place.name}` },
      h("table", { class: "entities nodes" }, h("caption", { class: "unseen" }, `Nodes of ${place.name}`), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Node"), LABELS.map((label) => h("th", { scope: "col" }, label)))), body),
    ),
    h("div", { class: "copies" }, copies, standbys),
  );
  function update() {
    const data = place.cluster;
    element.hidden = !data;
    if (!data) return;
    text(owner, `${data.owner ?? "No node"} owns ${place.name}`);
    text(facts, `· epoch ${count(data.epoch)} · lease ${data.lease_seconds_left.toFixed(1)} of ${duration(data.lease_seconds * 1000)} · ${plural(data.nodes.filter((one) => one.role !== null).length, "node")}`);
    lease.value = data.lease_seconds ? data.lease_seconds_left / data.lease_seconds : 0;
    attribute(lease, "title", `${data.lease_seconds_left.toFixed(1)} s left`);
    keyed(body, data.nodes, (one) => one.node, node);
    const names = data.database?.synchronous_standby_names;
    if (!data.database) text(copies, "The database does not tell about its standbys.");
    else text(copies, names ? `Commits wait for a standby of the database: ${names}` : "Commits wait for no standby that the database names.");
    keyed(standbys, (data.database?.standbys ?? []).map((one, index) => ({ ...one, key: `${one.standby}|${index}` })), (one) => one.key, standby);
  }
  return { element, update };
}
