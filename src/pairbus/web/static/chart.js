// Small charts as inline SVG. Lines differ by dash as well as by colour.

import { attribute, h, s, text } from "./dom.js";
import { tick } from "./format.js";

const WIDTH = 600;
const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const SPAN_MAX_MS = 120_000;
const SPAN_MIN_MS = 30_000;

function spanOf(points, now) {
  return points.length ? Math.min(SPAN_MAX_MS, Math.max(SPAN_MIN_MS, now - points[0].at)) : SPAN_MIN_MS;
}


export function niceTop(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power) return step * power;
  return value;
}

export function chart(title, series, format) {
  const lines = series.map((one) => s("path", { class: `line ${one.style}` }));
  const fillArea = series.length === 1 ? s("path", { class: `area ${series[0].style}` }) : null;
  const ticks = [0, 1, 2].map(() => s("text", { class: "tick", x: LEFT - 8, "text-anchor": "end" }));
  const grid = [0, 1, 2].map(() => s("line", { class: "grid", x1: LEFT, x2: WIDTH }));
  const begin = s("text", { class: "tick", x: LEFT, y: HEIGHT - 4 });
  const svg = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" },
    grid,
    fillArea,
    lines,
    ticks,
    begin,
    s("text", { class: "tick", x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
  );
  const values = series.map(() => h("strong", { class: "number" }));
  const legend = h(
    "div",
    { class: "legend" },
    series.map((one, index) => h("span", {}, h("i", { class: `swatch ${one.style}` }), one.name, " ", values[index])),
  );
  const element = h("figure", { class: "card figure" }, h("figcaption", {}, h("h3", {}, title), legend), svg);

  function update(points, now) {
    const span = spanOf(points, now);
    const shown = points.filter((point) => point.at >= now - span);
    text(begin, span >= SPAN_MAX_MS ? "2 min ago" : `${Math.round(span / 1000)} s ago`);
    const top = niceTop(Math.max(1, ...shown.flatMap((point) => series.map((one) => one.of(point) ?? 0))));
    const x = (at) => LEFT + ((at - now + span) / span) * (WIDTH - LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - BOTTOM - TOP);
    [0, top / 2, top].forEach((value, index) => {
      text(ticks[index], tick(value));
      attribute(ticks[index], "y", y(value) + 4);
      attribute(grid[index], "y1", y(value));
      attribute(grid[index], "y2", y(value));
    });
    series.forEach((one, index) => {
      const drawn = shown.filter((point) => one.of(point) !== null && one.of(point) !== undefined);
      const path = drawn.map((point, at) => `${at ? "L" : "M"}${x(point.at).toFixed(1)} ${y(one.of(point)).toFixed(1)}`);
      attribute(lines[index], "d", path.join(""));
      if (fillArea && drawn.length) {
        const ends = `L${x(drawn.at(-1).at).toFixed(1)} ${y(0)}L${x(drawn[0].at).toFixed(1)} ${y(0)}Z`;
        attribute(fillArea, "d", path.join("") + ends);
      }
      text(values[index], drawn.length ? format(one.of(drawn.at(-1))) : "–");
    });
    const spoken = series.map((one, index) => `${one.name} ${values[index].textContent}`).join(", ");
    attribute(svg, "aria-label", `${title}, the last ${Math.round(span / 1000)} seconds. Now: ${spoken}.`);
  }
  return { element, update };
}

export function spark() {
  const line = s("path", { class: "line depth" });
  const svg = s("svg", { viewBox: "0 0 72 20", class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" }, line);
  function update(points, now) {
    const span = spanOf(points, now);
    const shown = points.filter((point) => point.at >= now - span);
    const top = Math.max(1, ...shown.map((point) => point.active));
    const path = shown.map((point, at) => {
      const x = ((point.at - now + span) / span) * 72;
      return `${at ? "L" : "M"}${x.toFixed(1)} ${(18 - (point.active / top) * 16).toFixed(1)}`;
    });
    attribute(line, "d", path.join(""));
  }
  return { element: svg, update };
}
