// Small charts as inline SVG, drawn to the size they have on the screen. Lines differ by dash as well as by colour.

import { attribute, h, s, text } from "./dom.js";
import { age, tick } from "./format.js";

const WIDTH = 600;
const HEIGHT = 150;
const RIGHT = 2;
const BOTTOM = 22;
const TOP = 8;
const TICK_WIDTH = 7.2;
const SPAN_MAX_MS = 120_000;
const SPAN_MIN_MS = 15_000;

function spanOf(points, now) {
  return points.length ? Math.min(SPAN_MAX_MS, Math.max(SPAN_MIN_MS, now - points[0].at)) : SPAN_MIN_MS;
}

export function niceTop(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power) return step * power;
  return value;
}

function since(span) {
  return span >= SPAN_MAX_MS ? "2 min ago" : `${Math.round(span / 1000)} s ago`;
}

export function chart(title, series, format) {
  const lines = series.map((one) => s("path", { class: `line ${one.style}` }));
  const fillArea = series.length === 1 ? s("path", { class: `area ${series[0].style}` }) : null;
  const ticks = [0, 1, 2].map(() => s("text", { class: "tick", "text-anchor": "end" }));
  const grid = [0, 1, 2].map(() => s("line", { class: "grid" }));
  const begin = s("text", { class: "tick" });
  const end = s("text", { class: "tick", "text-anchor": "end" }, "now");
  const cursor = s("line", { class: "cursor", visibility: "hidden" });
  const svg = s("svg", { class: "chart", role: "img" }, grid, fillArea, lines, cursor, ticks, begin, end);
  const values = series.map(() => h("strong", { class: "number" }));
  const when = h("span", { class: "when" });
  const legend = h(
    "div",
    { class: "legend" },
    when,
    series.map((one, index) => h("span", {}, h("i", { class: `swatch ${one.style}` }), one.name, " ", values[index])),
  );
  const element = h("figure", { class: "card figure" }, h("figcaption", {}, h("h2", {}, title), legend), svg);

  let drawn = { points: [], now: 0, span: SPAN_MIN_MS, left: 0, width: WIDTH };
  let pointer = null;

  function latest(one, points) {
    return points.findLast((point) => one.of(point) !== null && one.of(point) !== undefined);
  }

  // Under the pointer: what it was then. Nowhere: what it is now.
  function read() {
    const { points, now, span, left, width } = drawn;
    let at = null;
    if (pointer !== null && points.length) {
      const wanted = now - span + ((pointer - left) / (width - RIGHT - left)) * span;
      at = points.reduce((best, point) => (Math.abs(point.at - wanted) < Math.abs(best.at - wanted) ? point : best));
      const x = left + ((at.at - now + span) / span) * (width - RIGHT - left);
      attribute(cursor, "x1", x.toFixed(1));
      attribute(cursor, "x2", x.toFixed(1));
    }
    attribute(cursor, "visibility", at === null ? "hidden" : "visible");
    text(when, at === null ? "" : `${age(now - at.at)} ago`);
    series.forEach((one, index) => {
      const point = at ?? latest(one, points);
      text(values[index], point ? format(one.of(point)) : "–");
    });
  }
  svg.addEventListener("pointermove", (event) => {
    pointer = event.clientX - svg.getBoundingClientRect().left;
    read();
  });
  svg.addEventListener("pointerleave", () => {
    pointer = null;
    read();
  });

  function update(points, now) {
    const width = svg.clientWidth || WIDTH;
    const height = svg.clientHeight || HEIGHT;
    const span = spanOf(points, now);
    const shown = points.filter((point) => point.at >= now - span);
    const top = niceTop(Math.max(1, ...shown.flatMap((point) => series.map((one) => one.of(point) ?? 0))));
    const labels = [0, top / 2, top].map(tick);
    const left = 10 + TICK_WIDTH * Math.max(...labels.map((label) => label.length));
    const x = (at) => left + ((at - now + span) / span) * (width - RIGHT - left);
    const y = (value) => TOP + (1 - value / top) * (height - BOTTOM - TOP);
    attribute(svg, "viewBox", `0 0 ${width} ${height}`);
    [0, top / 2, top].forEach((value, index) => {
      text(ticks[index], labels[index]);
      attribute(ticks[index], "x", left - 10);
      attribute(ticks[index], "y", y(value) + 4);
      attribute(grid[index], "x1", left);
      attribute(grid[index], "x2", width);
      attribute(grid[index], "y1", y(value));
      attribute(grid[index], "y2", y(value));
    });
    text(begin, since(span));
    attribute(begin, "x", left);
    attribute(begin, "y", height - 4);
    attribute(end, "x", width - RIGHT);
    attribute(end, "y", height - 4);
    attribute(cursor, "y1", TOP);
    attribute(cursor, "y2", height - BOTTOM);
    series.forEach((one, index) => {
      const known = shown.filter((point) => one.of(point) !== null && one.of(point) !== undefined);
      const path = known.map((point, at) => `${at ? "L" : "M"}${x(point.at).toFixed(1)} ${y(one.of(point)).toFixed(1)}`);
      attribute(lines[index], "d", path.join(""));
      if (fillArea && known.length) {
        const ends = `L${x(known.at(-1).at).toFixed(1)} ${y(0)}L${x(known[0].at).toFixed(1)} ${y(0)}Z`;
        attribute(fillArea, "d", path.join("") + ends);
      }
    });
    drawn = { points: shown, now, span, left, width };
    read();
    const spoken = series.map((one) => `${one.name} ${latest(one, shown) ? format(one.of(latest(one, shown))) : "unknown"}`).join(", ");
    attribute(svg, "aria-label", `${title}, ${since(span)} until now. Now: ${spoken}.`);
  }
  return { element, update };
}

export function spark() {
  const line = s("path", { class: "line depth" });
  const area = s("path", { class: "area depth" });
  const svg = s("svg", { viewBox: "0 0 84 22", class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" }, area, line);
  function update(points, now) {
    const span = spanOf(points, now);
    const shown = points.filter((point) => point.at >= now - span);
    const top = 1.15 * Math.max(1, ...shown.map((point) => point.active));
    const x = (at) => (((at - now + span) / span) * 84).toFixed(1);
    const path = shown.map((point, at) => `${at ? "L" : "M"}${x(point.at)} ${(20 - (point.active / top) * 18).toFixed(1)}`).join("");
    attribute(line, "d", path);
    attribute(area, "d", shown.length > 1 ? `${path}L${x(shown.at(-1).at)} 20L${x(shown[0].at)} 20Z` : "");
  }
  return { element: svg, update };
}
