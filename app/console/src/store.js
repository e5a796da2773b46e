// What the pages show: asked of the server every few seconds while somebody looks.

import { Refusal, get } from './api.js';
import { History } from './history.js';

const EVERY_MS = 2000;
/** So many times as long as a round took, the next one is waited for, but no longer than this. */
const [SHARE, MOST_MS] = [9, 15_000];

/** Where a page's words for what it needs are in the API. */
const RESOURCES = {
  status: '/api/v1/status', tier: '/api/v1/tier', metrics: '/metrics',
  snapshots: '/api/v1/snapshots', schedules: '/api/v1/snapshot-schedules', jobs: '/api/v1/jobs',
  copies: '/api/v1/replication-jobs', replicas: '/api/v1/replicas', buckets: '/api/v1/buckets', keys: '/api/v1/keys',
};

/** What every page has, and the charts are made of. */
const ALWAYS = ['status', 'tier', 'metrics'];

/** Asks, and tells `changed` after each answer. */
export class Store {
  /** What the server has, by name of resource or by path; a `Refusal` where it did not say. */
  resources = {};
  /** Why it says nothing at all, while that is so. */
  refusal = null;
  history = new History();
  #needs = [];
  #asking = new AbortController();
  #timer;

  constructor(changed) {
    this.changed = changed;
    document.addEventListener('visibilitychange', () => document.hidden || this.refresh());
  }

  /** Asks for these from now on, beside what every page has. */
  need(names) {
    if (names.join() === this.#needs.join()) return;
    this.#needs = names;
    this.refresh();
  }

  /** Asks now, and again and again; a round that is still under way ends without an answer. */
  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    this.#asking.abort();
    this.#asking = new AbortController();
    const [{ signal }, begun, names] = [this.#asking, performance.now(), [...ALWAYS, ...this.#needs]];
    const answers = await Promise.all(names.map(name => get(RESOURCES[name] ?? name, signal).catch(refusal => refusal)));
    if (signal.aborted) return;
    this.#take(names, answers);
    // Whoever looks at a large pool is not to keep it busy; a server that says nothing has nothing to do.
    const share_ms = this.refusal ? 0 : SHARE * (performance.now() - begun);
    this.#timer = setTimeout(() => this.refresh(), Math.min(MOST_MS, Math.max(EVERY_MS, share_ms)));
    this.changed();
  }

  #take(names, answers) {
    const [status, tier, metrics] = answers;
    this.refusal = status instanceof Refusal ? status : null;
    if (this.refusal) return;
    // This page is of the server that was there before: the next one may say other things.
    if (this.resources.status && this.resources.status.version !== status.version) location.reload();
    this.resources = Object.fromEntries(names.map((name, at) => [name, answers[at]]));
    if (!(tier instanceof Refusal || metrics instanceof Refusal)) this.history.add(this.resources);
  }
}
