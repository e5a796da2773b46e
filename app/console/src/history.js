// What the server counted, looked at every few seconds: the rates and times that the charts show.

/** How far back the charts go, in seconds. */
export const SPAN_S = 600;
/** Looks closer than this tell no rate; between those that are further apart, twice as far as a slow server sets them, nobody looked. */
const [LEAST_S, GAP_S] = [1, 60];

const LATENCY = /^kura_nbd_latency_seconds_bucket\{command="(read|write)",le="([^"]+)"\} (\d+)/gm;

/** Answers to NBD requests by how long they took: for each command, pairs of a bound in seconds and how many took no longer. */
export function latencies(metrics) {
  const of = { read: [], write: [] };
  for (const [, command, bound, count] of metrics.matchAll(LATENCY)) {
    of[command].push([bound === '+Inf' ? Infinity : Number(bound), Number(count)]);
  }
  return of;
}

/** The time that this part of the requests between two looks took at most, in seconds: within a bucket, as if they lay evenly. */
export function quantile(before, after, part) {
  const counts = after.map(([bound, count], at) => [bound, count - (before[at]?.[1] ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= part * all) return bound === Infinity ? low : low + (bound - low) * (part * all - below) / (count - below);
    [low, below] = [bound, count];
  }
  return low;
}

const sum = (list, name) => list.reduce((total, item) => total + item[name], 0);

/** What one look saw: counts since the server started. */
function look({ status, tier, metrics }) {
  const { controllers } = status;
  return {
    at: performance.now() / 1000, started: status.started_at, latency: latencies(metrics),
    reads: sum(controllers, 'reads'), writes: sum(controllers, 'writes'),
    readBytes: sum(controllers, 'read_bytes'), writtenBytes: sum(controllers, 'written_bytes'),
    fast: tier.fast_reads + tier.fast_writes, served: tier.reads + tier.writes,
  };
}

/** What happened between two looks. */
function between(before, after) {
  const rate = name => (after[name] - before[name]) / (after.at - before.at);
  const took = (command, part) => quantile(before.latency[command], after.latency[command], part);
  const served = after.served - before.served;
  return {
    at: after.at, reads: rate('reads'), writes: rate('writes'), readBytes: rate('readBytes'), writtenBytes: rate('writtenBytes'),
    readP50: took('read', 0.5), readP99: took('read', 0.99), writeP50: took('write', 0.5), writeP99: took('write', 0.99),
    fastShare: served > 0 ? (after.fast - before.fast) / served : null,
  };
}

/** The looks so far. Time is that of a clock that never goes back, in seconds. */
export class History {
  #last = null;
  #points = [];

  /** Takes in what the server says now. */
  add(resources) {
    const [seen, last] = [look(resources), this.#last];
    // Too short a time to tell a rate from.
    if (last && seen.at - last.at < LEAST_S) return;
    this.#last = seen;
    const isOneRun = last?.started === seen.started && seen.at - last.at < GAP_S;
    this.#points.push(isOneRun ? between(last, seen) : { at: seen.at });
    this.#points = this.#points.filter(point => point.at > seen.at - SPAN_S);
  }

  /** What happened last; absent where nothing is known of it. */
  get latest() {
    const point = this.#points.at(-1);
    return point && 'reads' in point ? point : undefined;
  }

  /** Series for a chart: the instants, in seconds since 1970, then each of these; null where nothing is known. */
  series(...names) {
    const epoch = (Date.now() - performance.now()) / 1000;
    return [this.#points.map(point => epoch + point.at), ...names.map(name => this.#points.map(point => point[name] ?? null))];
  }
}
