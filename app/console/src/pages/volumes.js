// Volumes with their snapshots and clones, as the tree that they grew into, and the schedules that snapshots are taken on.

import { ago, bytes, count, instant, seconds } from '../format.js';
import { html } from '../html.js';
import { Badge, Heading, Table, Verbs, address, given } from '../parts.js';
import * as changes from './volume_changes.js';

export const title = 'Volumes';
export const needs = () => ['snapshots', 'schedules'];

/** So many snapshots of a volume are shown before somebody asks for all of them. */
const NEWEST = 20;

export const Page = ({ status, snapshots, schedules, rest: [whole], ask }) => html`
  <${Heading} title=${title} verbs=${[['New volume …', () => ask(changes.create())], ['Snapshot several …', () => ask(changes.snapshots())]]}>
    Each is an NBD export of its name, and so is each of its snapshots.<//>
  ${given(snapshots, snapshots => html`<${Table} columns=${columns(ask)} rows=${tree(status.volumes, snapshots, whole)} id=${node => node.name}
    note=${note} empty="There is none yet: make one."/>`)}
  <details class="card"><summary>How a client reaches one</summary>
    ${status.nbd.map(uri => html`<p><code>nbdinfo '${uri}'</code></p>`)}
    <p class="soft">${'{volume}'} stands for the name.</p></details>
  <${Heading} title="Schedules" verbs=${[['New schedule …', () => ask(changes.schedule(status.volumes))]]}>
    Snapshots taken by the clock; the oldest beyond so many go.<//>
  ${given(schedules, rows => html`<${Table} columns=${scheduleColumns(ask)} rows=${rows} id=${of => `${of.volume} ${of.prefix}`}
    note=${({ error }) => error} empty="No volume has one."/>`)}`;

/**
 * Everything that has blocks, each after what it was made of; `depth` counts what it descends from, and `isSnapshot` tells what it is.
 * Of many snapshots of one thing only the newest are there, and those of which something was made, unless it is `whole`; `older` of the
 * first of them counts the others.
 */
export function tree(volumes, snapshots, whole) {
  const all = [
    ...volumes.map(volume => ({ ...volume, parent: volume.made_of })),
    ...snapshots.map(snapshot => ({ ...snapshot, parent: snapshot.volume, isSnapshot: true })),
  ];
  const known = new Set(all.map(({ name }) => name));
  const of = Map.groupBy(all, ({ parent }) => (known.has(parent) ? parent : undefined));
  const grown = (parent, depth) => {
    const children = of.get(parent) ?? [];
    const taken = children.filter(({ isSnapshot }) => isSnapshot);
    const hidden = new Set(parent === whole ? [] : taken.slice(0, Math.max(0, taken.length - NEWEST)).filter(({ name }) => !of.has(name)));
    const first = taken.find(node => !hidden.has(node));
    const shown = children.filter(node => !hidden.has(node));
    return shown.flatMap(node => [{ ...node, depth, older: node === first ? hidden.size : 0 }, ...grown(node.name, depth + 1)]);
  };
  return grown(undefined, 0);
}

const columns = ask => [
  { name: 'Name', of: node => html`<span class="node" style=${{ paddingLeft: `${1.4 * node.depth}rem` }}>
    ${node.depth > 0 && html`<span class="soft" aria-hidden="true">└ </span>`}${node.name}</span>` },
  { name: 'What', of: what },
  { name: 'Size', of: node => bytes(node.size_bytes), number: true },
  { name: 'Holds', of: held, number: true },
  { name: 'Clients', of: node => node.clients, number: true },
  { name: '', of: node => html`<${Verbs} of=${verbs(node, ask)}/>` },
];

/** Of a volume all copies count; of a snapshot what nobody else has. */
const held = node => (node.isSnapshot ? `${bytes(node.unique_bytes)} alone` : bytes(node.raw_bytes));

function what(node) {
  if (node.isSnapshot) return html`snapshot, <span title=${instant(node.made_at)}>${ago(node.made_at)}</span>${node.read_only && ', read-only'}`;
  const words = [node.layout, node.thick ? 'thick' : 'thin', node.read_only && 'read-only', node.made_of && 'clone'].filter(Boolean).join(', ');
  return html`${words} ${node.follows && html`<${Badge} mood="warn">follows its source<//>`}`;
}

function note(node) {
  if (node.lost) return 'it is lost: it can only be deleted';
  if (node.doomed) return 'it is lost at the next start: copy it to another volume before';
  return node.older > 0 && html`<a href=${address('volumes', node.parent)}>${count(node.older, 'older snapshot')} of ${node.parent}</a>`;
}

function verbs(node, ask) {
  const verb = (name, question) => [name, () => ask(question(node.name, node))];
  const own = node.isSnapshot
    ? [verb('Roll back', changes.rollBack), verb('Clone', changes.clone)]
    : [verb('Resize', changes.resize)];
  return [verb('Snapshot', changes.snapshot), ...own, verb('Delete', node.isSnapshot ? changes.deleteSnapshot : changes.deleteVolume)];
}

const scheduleColumns = ask => [
  { name: 'Volume', of: ({ volume }) => volume },
  { name: 'Names', of: ({ volume, prefix }) => html`<code>${volume}@${prefix}-TIME</code>` },
  { name: 'Every', of: ({ every_s }) => seconds(every_s), number: true },
  { name: 'Keeps', of: ({ keep }) => count(keep, 'snapshot'), number: true },
  { name: '', of: of => html`<${Verbs} of=${[['Remove', () => ask(changes.unschedule(of))]]}/>` },
];
