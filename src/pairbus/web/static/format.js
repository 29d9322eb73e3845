// Numbers, sizes, times and bodies as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 1_000_000 ? whole.format(value) : short.format(value);
}

export function tick(value) {
  return value < 10_000 ? whole.format(value) : short.format(value);
}

export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1).replace(/\.0$/, "") : whole.format(Math.round(value))} ${units[unit]}`;
}

// How old something is, in whole seconds: a tenth more or less says nothing about an age.
export function age(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  const seconds = Math.floor(Math.max(0, milliseconds) / 1000);
  return seconds < 120 ? `${seconds} s` : duration(seconds * 1000);
}

export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(milliseconds) {
  if (!milliseconds) return "–";
  const date = new Date(milliseconds);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

export function precise(milliseconds) {
  return milliseconds ? new Date(milliseconds).toISOString() : "–";
}

export function stamp(milliseconds) {
  return milliseconds ? `${new Date(milliseconds).toISOString().replace("T", " ").replace("Z", "")} UTC` : "–";
}

export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

export function hexLines(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const part = hex.slice(at, at + 32);
    const pairs = part.match(/../g) ?? [];
    const letters = pairs.map((pair) => {
      const code = parseInt(pair, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    });
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters.join("")}`);
  }
  return lines.join("\n");
}

const DEPTH_MAX = 100;

// JSON with line breaks and indents; null if it is none, or nested too deeply. Values stay as they were sent: a parser would
// round large numbers, shorten 10.00 and drop all but the last of equal keys.
export function indentedJson(source) {
  try {
    JSON.parse(source);
  } catch {
    return null;
  }
  const parts = [];
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < source.length; at += 1) {
    const character = source[at];
    if (character === '"') {
      const start = at;
      for (at += 1; source[at] !== '"'; at += 1) if (source[at] === "\\") at += 1;
      parts.push(source.slice(start, at + 1));
    } else if (character === "{" || character === "[") {
      let next = at + 1;
      while (/\s/.test(source[next])) next += 1;
      if (source[next] === "}" || source[next] === "]") {
        parts.push(character, source[next]);
        at = next;
      } else {
        depth += 1;
        if (depth > DEPTH_MAX) return null;
        parts.push(character, newLine());
      }
    } else if (character === "}" || character === "]") {
      depth -= 1;
      parts.push(newLine(), character);
    } else if (character === ",") {
      parts.push(character, newLine());
    } else if (character === ":") {
      parts.push(": ");
    } else if (!/\s/.test(character)) {
      parts.push(character);
    }
  }
  return parts.join("");
}
