// The pool: its room, its disks, the controllers that share it.

import { change, path } from '../api.js';
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
    <${Running} jobs=${jobs} ask=${ask}/>
    <${Space} pool=${status.pool}/>
    <${Table} columns=${columns(ask)} rows=${status.pool.disks} id=${disk => disk.id} note=${note}/>
    <${Heading} title="Controllers">Each is a thread with its volumes and their journal. Counts are since the start.<//>
    <${Table} columns=${CONTROLLERS} rows=${status.controllers} id=${controller => controller.id} note=${({ failure }) => failure}/>`;
}

/** What the pool's room is used for. */
export const Space = ({ pool }) => html`
  <section class="card"><h3>Room of ${bytes(pool.data_bytes)}, all copies counted</h3>
    <${Stack} parts=${[
      ['volumes', pool.volume_bytes], ['hot area', pool.hot_bytes], ['snapshots', pool.snapshot_bytes],
      ['free, lent to the hot area', pool.borrowed_bytes], ['free', pool.free_bytes - pool.borrowed_bytes],
    ]}/>
  </section>`;

const used = disk => (disk.data_bytes > 0 ? 1 - disk.free_bytes / disk.data_bytes : 0);

const columns = ask => [
  { name: 'Disk', of: disk => html`<code>${disk.path}</code>` },
  { name: 'Number', of: disk => disk.id, number: true },
  { name: 'Class', of: disk => disk.class },
  { name: 'State', of: disk => html`<${Badge} mood=${MOODS[disk.state]}>${disk.state}<//>` },
  { name: 'Size', of: disk => bytes(disk.size_bytes), number: true },
  { name: 'Used', of: disk => html`<${Bar} part=${used(disk)} label="used"/>` },
  { name: 'Journals', of: disk => disk.journals, number: true },
  { name: 'Errors', of: disk => number(disk.io_errors + disk.checksum_errors), number: true },
  { name: '', of: disk => html`<${Verbs} of=${verbs(disk, ask)}/>` },
];

function note(disk) {
  const notes = [
    disk.unwanted_bytes > 0 && `${bytes(disk.unwanted_bytes)} have still to move to other disks`,
    disk.lost_bytes > 0 && `${bytes(disk.lost_bytes)} have no copy on a working disk: bring this one back`,
    disk.stalled,
  ];
  return notes.filter(Boolean).join('; ') || null;
}

const verbs = (disk, ask) => [
  ...(disk.state === 'healthy' ? [['Fail', () => ask(fail(disk))]] : [['Replace', () => ask(replace(disk))]]),
  ...(disk.state === 'leaving' ? [] : [['Remove', () => ask(remove(disk))]]),
];

const PLACE = [
  { name: 'path', label: 'Path', hint: 'a block device or a file, as the server sees it; everything on it is lost' },
  { name: 'size', label: 'Size of the sparse file to be made', value: '', isOptional: true, hint: 'empty where the path names what there is' },
];

const placed = ({ path, size }) => ({ path, ...(size ? { size_bytes: parseSize(size) } : {}) });

const add = () => ({
  title: 'Add a disk', verb: 'Add', text: 'The disk joins the pool.',
  fields: [...PLACE, { name: 'class', label: 'What for', type: 'select', options: [['slow', 'data'], ['fast', 'journals and the fast tier']] }],
  act: async values => { await change('POST', path`disks`, { ...placed(values), class: values.class }); },
});

const fail = disk => ({
  title: `Fail disk ${disk.id}`, verb: 'Fail it', isGrave: true,
  text: `${disk.path} is not used any more, and what it holds is made anew on the others, from copies and parity. Refused where data would be lost.`,
  act: async () => { await change('POST', path`disks/${disk.id}/fail`); },
});

const replace = disk => ({
  title: `Replace disk ${disk.id}`, verb: 'Replace it', text: `Another disk takes the place of ${disk.path}.`, fields: PLACE,
  act: async values => { await change('POST', path`disks/${disk.id}/replace`, placed(values)); },
});

const remove = disk => ({
  title: `Remove disk ${disk.id}`, verb: 'Remove it', isGrave: true,
  text: `What ${disk.path} holds moves to the others, then the pool forgets it.`,
  act: async () => { await change('POST', path`disks/${disk.id}/remove`); },
});

const CONTROLLERS = [
  { name: 'Controller', of: it => it.id },
  { name: 'Volumes', of: it => `${count(it.volumes, 'volume')}${it.drained ? ', drained' : ''}` },
  { name: 'Journal that a crash would replay', of: it => html`<${Bar} part=${it.journal_used_bytes / it.journal_bytes} label="journal"/>` },
  { name: 'Write buffer', of: it => html`<${Bar} part=${it.dirty_bytes / it.dirty_limit_bytes} label="write buffer"/>` },
  { name: 'To the hot area', of: it => bytes(4096 * it.array.hot_blocks), number: true },
  { name: 'Cooled', of: it => bytes(4096 * it.array.cooled_blocks), number: true },
  { name: 'Straight to stripes', of: it => bytes(4096 * it.array.cold_blocks), number: true },
];
