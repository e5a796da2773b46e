// The pool: its room, its disks, the controllers that share it.

import { change, path, trial } from '../api.js';
import { bytes, count, number, parseSize } from '../format.js';
import { html } from '../html.js';
import { Badge, Bar, Heading, Stack, Table, Verbs } from '../parts.js';
import { Running } from './jobs.js';

export const title = 'Disks';
export const needs = () => ['jobs'];

const MOODS = { healthy: 'good', leaving: 'warn', failed: 'bad', missing: 'bad' };

export function Page({ status, jobs, ask }) {
  return html`
    <${Heading} title=${title} verbs=${[['Add a disk …', () => ask(add())]]}>Pool ${status.pool.uuid}<//>
    <${Problems} status=${status}/>
    <${Running} jobs=${jobs} ask=${ask}/>
    <${Space} pool=${status.pool}/>
    <${Table} columns=${columns(ask)} rows=${status.pool.disks} id=${disk => disk.id} note=${note}/>
    <${Heading} title="Controllers">Each is a thread with its volumes and their journal. Counts are since the start.<//>
    <${Table} columns=${CONTROLLERS} rows=${status.controllers} id=${controller => controller.id} note=${({ failure }) => failure}/>`;
}

/** What is not well, and that room runs out. */
export const Problems = ({ status: { problems, pool } }) => html`
  ${problems.map(problem => html`<p class="refusal" role="alert">${problem}</p>`)}
  ${pool.passed_percent && html`<p class="refusal" role="alert">The pool is filling up: ${pool.passed_percent} % of its room is passed. Delete
    snapshots or volumes, trim what is not needed, or add a disk.</p>`}`;

/** What the pool's room is used for. */
export function Space({ pool }) {
  const { data_bytes, free_bytes, borrowed_bytes, volume_bytes, hot_bytes, snapshot_bytes } = pool;
  // What is given up and not free yet; what is lent may have been given back since the free room was looked at.
  const other = Math.max(0, data_bytes - free_bytes - volume_bytes - hot_bytes - snapshot_bytes);
  return html`
    <section class="card"><h3>Room of ${bytes(data_bytes)}, all copies counted</h3>
      <${Stack} whole=${data_bytes} parts=${[
        ['volumes', volume_bytes], ['hot area', hot_bytes], ['snapshots', snapshot_bytes],
        ['free, lent to the hot area', borrowed_bytes], ...(other > 0 ? [['other', other]] : []),
        ['free', Math.max(0, free_bytes - borrowed_bytes)],
      ]}/>
    </section>`;
}

const columns = ask => [
  { name: 'Disk', of: disk => html`<code>${disk.path}</code>` },
  { name: 'Number', of: disk => disk.id, number: true },
  { name: 'Class', of: disk => disk.class },
  { name: 'State', of: disk => html`<${Badge} mood=${MOODS[disk.state]}>${disk.state}<//>` },
  { name: 'Size', of: disk => bytes(disk.size_bytes), number: true },
  { name: 'Used', of: disk => html`<${Bar} value=${disk.data_bytes - disk.free_bytes} whole=${disk.data_bytes} label="used"/>` },
  { name: 'Journals', of: disk => (disk.journals === disk.journals_due ? disk.journals : `${disk.journals} of ${disk.journals_due}`), number: true },
  { name: 'Errors', of: disk => number(disk.io_errors + disk.checksum_errors), number: true },
  { name: '', of: disk => html`<${Verbs} of=${verbs(disk, ask)}/>` },
];

function note(disk) {
  const notes = [
    disk.unwanted_bytes > 0 && `${bytes(disk.unwanted_bytes)} have still to move to other disks`,
    disk.lost_bytes > 0 && `${bytes(disk.lost_bytes)} had their only copy on it`,
    disk.only_journals > 0 && `the only copy of ${count(disk.only_journals, 'journal')} lies on it`,
    disk.stalled,
  ];
  return notes.filter(Boolean).join('; ') || null;
}

const verbs = (disk, ask) => [
  ['Replace', () => ask(replace(disk))],
  ...(disk.state === 'leaving' ? [] : [['Remove', () => ask(remove(disk))]]),
  ...(disk.state === 'healthy' ? [['Fail', () => ask(fail(disk))]] : []),
];

const PLACE = [
  { name: 'where', label: 'Path', hint: 'a block device or a file, as the server sees it' },
  { name: 'size', label: 'Size of the sparse file to be made', value: '', isOptional: true, hint: 'empty where the path names what there is' },
  { name: 'force', label: 'Even though it is not blank', type: 'checkbox', hint: 'everything on it is lost' },
];

const placed = ({ where, size, force }) => ({ path: where, force, ...(size ? { size_bytes: parseSize(size) } : {}) });

const add = () => ({
  title: 'Add a disk', verb: 'Add', text: 'The disk joins the pool.',
  fields: [...PLACE, { name: 'class', label: 'What for', type: 'select', options: [['slow', 'data'], ['fast', 'journals and the fast tier']] }],
  act: values => change('POST', path`disks`, { ...placed(values), class: values.class }),
});

const replace = disk => ({
  title: `Replace disk ${disk.id}`, verb: 'Replace it', fields: PLACE,
  text: `A new disk joins, what ${disk.path} holds moves to it and to the others, then the pool forgets the old one. It cannot be stopped.`,
  act: values => change('POST', path`disks/${disk.id}/replace`, placed(values)),
});

const remove = disk => ({
  title: `Remove disk ${disk.id}`, verb: 'Remove it', isGrave: true, trial: () => trial('POST', path`disks/${disk.id}/remove`),
  text: `What ${disk.path} holds moves to the others, from copies and parity where it does not work, then the pool forgets it. It cannot be stopped.`,
  act: () => change('POST', path`disks/${disk.id}/remove`),
});

const fail = disk => ({
  title: `Fail disk ${disk.id}`, verb: 'Fail it', isGrave: true, trial: () => trial('POST', path`disks/${disk.id}/fail`),
  text: `${disk.path} is not used any more, and what it held is made anew on the others, from copies and parity: until then another failure may cost data. To take a disk out that still works, replace or remove it.`,
  act: () => change('POST', path`disks/${disk.id}/fail`),
});

const CONTROLLERS = [
  { name: 'Controller', of: it => it.id },
  { name: 'Volumes', of: it => `${count(it.volumes, 'volume')}${it.drained ? ', drained' : ''}` },
  { name: 'Journal that a crash would replay', of: it => html`<${Bar} value=${it.journal_used_bytes} whole=${it.journal_bytes} label="journal"/>` },
  { name: 'Write buffer', of: it => html`<${Bar} value=${it.dirty_bytes} whole=${it.dirty_limit_bytes} label="write buffer"/>` },
  { name: 'To the hot area', of: it => bytes(4096 * it.array.hot_blocks), number: true },
  { name: 'Cooled', of: it => bytes(4096 * it.array.cooled_blocks), number: true },
  { name: 'Straight to stripes', of: it => bytes(4096 * it.array.cold_blocks), number: true },
];
