// Long work: how far it is, what came of it.

import { change, path } from '../api.js';
import { ago, bytes, count, instant } from '../format.js';
import { html } from '../html.js';
import { Badge, Bar, Heading, Table, Verbs, given } from '../parts.js';

export const title = 'Jobs';
export const needs = () => ['jobs'];

const MOODS = { running: 'warn', done: 'good', failed: 'bad', cancelled: '' };
const KINDS = {
  check: 'check', 'remove-disk': 'removal of disk', 'rebuild-disk': 'rebuild of disk', 'move-volume': 'move of volume',
  'drain-controller': 'drain of controller',
};

export function Page({ jobs, ask }) {
  return html`
    <${Heading} title=${title} verbs=${[['Check the pool …', () => ask(CHECK)]]}>The last hundred since the server started.<//>
    ${given(jobs, rows => html`<${Table} columns=${columns(ask)} rows=${newestFirst(rows)} id=${job => job.id} note=${outcome}
      empty="Nothing that takes long was asked for."/>`)}`;
}

/** What goes on now, for pages about what it works on. */
export const Running = ({ jobs, ask }) => given(jobs, all => {
  const running = all.filter(({ state }) => state === 'running');
  return running.length > 0 && html`
    <section class="card"><h3>Going on</h3><${Table} columns=${columns(ask)} rows=${running} id=${job => job.id} note=${outcome}/></section>`;
});

const newestFirst = jobs => jobs.toSorted((one, other) => other.id - one.id);

const amount = (many, unit) => (unit === 'bytes' ? bytes(many) : count(many, 'volume'));

function progress(job) {
  if (job.state !== 'running') return amount(job.done, job.unit);
  if (job.total === 0) return 'begins';
  return html`<${Bar} value=${job.done} whole=${job.total} label="done"/> of ${amount(job.total, job.unit)}`;
}

const name = job => `${KINDS[job.kind] ?? job.kind} ${job.of ?? ''}`;

/** What moves off a disk goes on by itself. */
const canBeCancelled = ({ state, kind }) => state === 'running' && !['remove-disk', 'rebuild-disk'].includes(kind);

const cancel = job => ({
  title: `Cancel job ${job.id}`, verb: 'Cancel it', text: `The ${name(job)} ends where it is; what it has done stays done.`,
  act: () => change('POST', path`jobs/${job.id}/cancel`),
});

const columns = ask => [
  { name: 'Job', of: name },
  { name: 'Number', of: job => job.id, number: true },
  { name: 'State', of: job => html`<${Badge} mood=${MOODS[job.state]}>${job.state}<//>` },
  { name: 'Done', of: progress },
  { name: 'Begun', of: job => html`<span title=${instant(job.started_at)}>${ago(job.started_at)}</span>` },
  { name: '', of: job => canBeCancelled(job) && html`<${Verbs} of=${[['Cancel', () => ask(cancel(job))]]}/>` },
];

/** What a job waits for or failed of, and what a check found. */
function outcome({ waits, error, kind, result }) {
  const violations = kind === 'check' ? result?.violations ?? [] : [];
  const found = kind === 'check' && result && `${count(result.volumes, 'volume')} and ${count(result.blocks, 'block')} looked at, ${
    result.dry_run ? `${result.repaired} could be repaired` : `${result.repaired} repaired`}, ${
    violations.length === 0 ? 'all is well' : count(violations.length, 'violation')}`;
  return [waits, error?.error ?? error, found, ...violations].filter(Boolean).join('; ') || null;
}

const CHECK = {
  title: 'Check the pool', verb: 'Check',
  text: 'Tables are compared with each other while the pool is in use.',
  fields: [{ name: 'data', label: 'Read and verify every written block too', type: 'checkbox', value: true, hint: 'takes as long as reading all the disks does; what is damaged is repaired from good copies' }],
  act: ({ data }) => change('POST', path`check`, { data }),
};
