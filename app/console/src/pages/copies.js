// Copies kept elsewhere: how old each is, and how old it may become; and the volumes here that are copies.

import { before, bytes, instant, seconds } from '../format.js';
import { html } from '../html.js';
import { Badge, Heading, Table, given } from '../parts.js';

export const title = 'Replication';
export const needs = () => ['copies', 'replicas'];

export const Page = ({ copies, replicas }) => html`
  <${Heading} title=${title}>Jobs of this server. <code>kura replicate add</code> makes one, <code>kura replicate run</code> runs one now.<//>
  ${given(copies, rows => html`<${Table} columns=${JOBS} rows=${rows} id=${job => job.name} note=${({ error }) => error}
    empty="There is none: kura replicate add NAME SOURCE TARGET makes one."/>`)}
  <${Heading} title="Copies kept here">Volumes that follow another one, here or on another server.<//>
  ${given(replicas, rows => html`<${Table} columns=${REPLICAS} rows=${rows} id=${replica => replica.volume} empty="No volume here is a copy."/>`)}`;

function* states(job) {
  if (job.is_failed_over) yield ['failed over', 'warn'];
  if (job.is_running) yield ['running', 'warn'];
  if (job.is_late) yield ['late', 'bad'];
  if (job.is_complete === undefined) yield ['not run yet'];
  else yield job.is_complete ? ['complete', 'good'] : ['not complete', 'bad'];
}

const orNone = (value, show) => (value === undefined ? '–' : show(value));

const JOBS = [
  { name: 'Job', of: job => job.name },
  { name: 'From', of: job => html`<code>${job.source}</code>` },
  { name: 'To', of: job => html`<code>${job.target}</code>` },
  { name: 'State', of: job => [...states(job)].map(([word, mood]) => html`<${Badge} mood=${mood}>${word}<//> `) },
  { name: 'Is of', of: job => orNone(job.recovery_point_age_s, s => html`<span title=${instant(job.recovery_point)}>${before(s)}</span>`) },
  { name: 'May be as old as', of: job => orNone(job.rpo_s, seconds), number: true },
  { name: 'Runs every', of: job => orNone(job.every_s, seconds), number: true },
];

const REPLICAS = [
  { name: 'Volume', of: replica => replica.volume },
  { name: 'State', of: replica => replica.state },
  { name: 'Copy of', of: replica => orNone(replica.source, source => html`<code>${source}</code>`) },
  { name: 'Newest complete point', of: replica => orNone(replica.point, point => html`<code>${replica.volume}@${point}</code>`) },
  { name: 'On its way', of: replica => orNone(replica.transfer, ({ to, offset_bytes }) => `${to}, ${bytes(offset_bytes)} are passed`) },
];
