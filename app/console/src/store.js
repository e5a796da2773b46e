// What the pages show: asked of the server every few seconds while somebody looks.

import { get } from './api.js';
import { History } from './history.js';

const EVERY_MS = 2000;

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
  /** What the server has, by name of resource; a page's own too, which are named by their path. */
  resources = {};
  /** Why it does not say what it has, while that is so. */
  refusal = null;
  history = new History();
  #needs = [];
  #round = 0;
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

  /** Asks now, and again and again; an answer that comes after a later round has begun is dropped. */
  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    this.#round += 1;
    const round = this.#round;
    const names = [...ALWAYS, ...this.#needs];
    const answers = await Promise.allSettled(names.map(name => get(RESOURCES[name] ?? name)));
    if (round !== this.#round) return;
    this.#take(names, answers);
    this.#timer = setTimeout(() => this.refresh(), EVERY_MS);
    this.changed();
  }

  /** What a page alone wanted and did not get is the page's matter: a volume that is gone has no heat. */
  #take(names, answers) {
    const failed = answers.slice(0, ALWAYS.length).find(answer => answer.status === 'rejected');
    this.refusal = failed?.reason ?? null;
    if (failed) return;
    names.forEach((name, at) => { this.resources[name] = answers[at].value ?? answers[at].reason; });
    this.history.add(this.resources);
  }
}
