// What is known of each namespace, asked for again every second; knows how old it is.

import { get } from "./api.js";

export const INTERVAL_MS = 1000;
export const STALE_MS = 3 * INTERVAL_MS;
const HISTORY_MAX = 150;
const RATE_WINDOW_MS = 5000;

export class Place {
  constructor(described) {
    Object.assign(this, described);
    this.overview = null;
    this.cluster = null;
    this.isCluster = described.rights.length > 0;
    this.answeredAt = null;
    this.error = null;
    this.isAsking = false;
    this.history = new Map();
  }

  get ageMs() {
    return this.answeredAt === null ? Infinity : performance.now() - this.answeredAt;
  }

  get isStale() {
    return this.ageMs > STALE_MS;
  }

  get isRefused() {
    return this.error?.status === 403;
  }

  can(right) {
    return this.rights.includes(right) || this.rights.includes("Manage");
  }

  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      this.take(await get(`${this.base}/overview`));
      await this.askCluster();
    } catch (error) {
      this.error = error;
    } finally {
      this.isAsking = false;
    }
  }

  // A namespace that is no cluster says so once, and is not asked again.
  async askCluster() {
    if (!this.isCluster) return;
    try {
      const found = await get(`${this.base}/cluster`);
      this.isCluster = found.nodes !== undefined;
      this.cluster = this.isCluster ? found : null;
    } catch (error) {
      if (error.status === 403 || error.status === 404) this.isCluster = false;
    }
  }

  take(overview) {
    this.overview = overview;
    this.answeredAt = performance.now();
    this.error = null;
    const paths = new Set();
    for (const row of overview.entities) {
      paths.add(row.path);
      this.remember(row.path, row);
    }
    for (const path of this.history.keys()) if (!paths.has(path) && path !== "") this.history.delete(path);
    const sum = { active: 0, dead_letter: 0, sent: 0, received: 0 };
    for (const row of overview.entities) {
      sum.active += row.active;
      sum.dead_letter += row.dead_letter;
      sum.sent += row.kind === "subscription" ? 0 : row.sent;
      sum.received += row.received;
    }
    this.remember("", sum);
  }

  remember(path, row) {
    let points = this.history.get(path);
    if (!points) this.history.set(path, (points = []));
    const point = {
      at: this.answeredAt,
      active: row.active,
      dead: row.dead_letter,
      sent: row.sent,
      received: row.received,
      inRate: null,
      outRate: null,
    };
    // A restarted broker counts from nought: rates begin again with it.
    const last = points.at(-1);
    const isAnew = last !== undefined && (row.sent < last.sent || row.received < last.received);
    const since = isAnew ? undefined : points.find((one) => one.at >= point.at - RATE_WINDOW_MS);
    if (since !== undefined && point.at > since.at && since.sent <= row.sent && since.received <= row.received) {
      const seconds = (point.at - since.at) / 1000;
      point.inRate = (row.sent - since.sent) / seconds;
      point.outRate = (row.received - since.received) / seconds;
    }
    points.push(point);
    if (points.length > HISTORY_MAX) points.shift();
  }

  points(path) {
    return this.history.get(path) ?? [];
  }

  latest(path) {
    return this.points(path).at(-1) ?? { inRate: null, outRate: null };
  }

  row(path) {
    return this.overview?.entities.find((row) => row.path.toLowerCase() === path.toLowerCase());
  }
}

export const store = { session: null, places: [], pairing: null, pairingAt: null, pairingHistory: [] };

export function begin(session) {
  store.session = session;
  store.places = session.namespaces.map((described) => new Place(described));
  store.pairing = null;
  store.pairingHistory = [];
  store.pairingAt = null;
}

export function place(id) {
  return store.places.find((one) => one.id === id);
}

// Once a round, from the same numbers that the tables show, while they are no older than a chart's reader expects.
export function rememberBacklog() {
  const backlog = store.places.find((one) => one.role === "secondary");
  if (!store.pairing || !backlog || backlog.overview === null || backlog.isStale) return;
  store.pairingHistory.push({ at: performance.now(), active: backlogDepth() });
  if (store.pairingHistory.length > HISTORY_MAX) store.pairingHistory.shift();
}

export async function askAll() {
  const asked = store.places.map((one) => one.ask());
  if (store.session.pairing) asked.push(askPairing());
  await Promise.all(asked);
  return store.places.find((one) => one.error?.status === 401);
}

let isAskingPairing = false;

async function askPairing() {
  if (isAskingPairing) return;
  isAskingPairing = true;
  try {
    store.pairing = await get("/$page/api/pairing");
    store.pairingAt = performance.now();
  } catch {
    // Its age shows on the page.
  } finally {
    isAskingPairing = false;
  }
}

export function backlogRows() {
  const found = [];
  for (const one of store.places) {
    for (const row of one.overview?.entities ?? []) if (row.backlog) found.push({ place: one, row });
  }
  return found;
}

export function oldestInBacklog() {
  const times = backlogRows().map(({ row }) => row.oldest_at).filter(Boolean);
  return times.length ? Math.max(0, Date.now() - Math.min(...times)) : null;
}

export function backlogDepth() {
  return backlogRows().reduce((sum, { row }) => sum + row.active + row.scheduled, 0);
}
