// Talking to the namespace: one session, one anti-forgery token, answers remembered by their tags.

const PATIENCE_MS = 4000;
const REMEMBERED_MAX = 50;
const remembered = new Map();
let token = null;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(address, options) {
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), PATIENCE_MS);
  try {
    return await fetch(address, { cache: "no-store", redirect: "error", signal: patience.signal, ...options });
  } catch {
    throw new Refused(0, "No answer.");
  } finally {
    clearTimeout(timer);
  }
}

async function body(response) {
  let value = {};
  try {
    value = await response.json();
  } catch {
    if (response.ok) throw new Refused(response.status, "The answer cannot be read.");
  }
  if (!response.ok) throw new Refused(response.status, value.error ?? `The answer was ${response.status}.`);
  return value;
}

export async function get(address) {
  const known = remembered.get(address);
  const response = await ask(address, { headers: known ? { "If-None-Match": known.tag } : {} });
  if (response.status === 304 && known) return known.value;
  const value = await body(response);
  const tag = response.headers.get("ETag");
  if (tag) {
    remembered.delete(address);
    remembered.set(address, { tag, value });
    if (remembered.size > REMEMBERED_MAX) remembered.delete(remembered.keys().next().value);
  }
  return value;
}

export async function post(address, wish) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers["X-PairBus-Token"] = token;
  return body(await ask(address, { method: "POST", headers, body: JSON.stringify(wish ?? {}) }));
}

export async function session() {
  const found = await get("/$page/api/session");
  token = found.token;
  return found;
}

export async function signIn(rule, key, entity) {
  const found = await post("/$page/sign-in", { rule, key, entity: entity || null });
  remembered.clear();
  token = found.token;
  return found;
}

export async function signOut() {
  remembered.clear();
  await post("/$page/sign-out");
  token = null;
}
