// Volumes with their snapshots and clones, as the tree that they grew into, and the schedules that snapshots are taken on.

import { ago, bytes, count, instant, seconds } from '../format.js';
import { html } from '../html.js';
import { Badge, Heading, Table, Verbs } from '../parts.js';
import * as changes from './volume_changes.js';

export const title = 'Volumes';
export const needs = () => ['snapshots', 'schedules', 'replicas'];

export function Page({ status, snapshots, schedules, replicas, ask }) {
  const nodes = tree(status.volumes, snapshots);
  return html`
    <${Heading} title=${title} verbs=${[['New volume …', () => ask(changes.create())], ['Snapshot several …', () => ask(changes.snapshot(''))]]}>
      Each is an NBD export of its name, and so is each of its snapshots.<//>
    <${Table} columns=${columns(replicas, ask)} rows=${nodes} id=${node => node.name} note=${note} empty="There is none yet: make one."/>
    <details class="card"><summary>How a client reaches one</summary>
      ${status.nbd.map(uri => html`<p><code>${uri}</code></p>`)}
      <p class="soft">${'{volume}'} stands for the name, as in <code>nbdcopy disk.img 'nbd://HOST:PORT/demo'</code>.</p></details>
    <${Heading} title="Schedules" verbs=${[['New schedule …', () => ask(changes.schedule(status.volumes))]]}>
      Snapshots taken by the clock; the oldest beyond so many go.<//>
    <${Table} columns=${scheduleColumns(ask)} rows=${schedules} id=${of => `${of.volume} ${of.prefix}`} note=${({ error }) => error} empty="No volume has one."/>`;
}

/** Everything that has blocks, each after what it was made of; `depth` counts what it descends from, and `isSnapshot` tells what it is. */
export function tree(volumes, snapshots) {
  const all = [
    ...volumes.map(volume => ({ ...volume, parent: volume.made_of })),
    ...snapshots.map(snapshot => ({ ...snapshot, parent: snapshot.volume, isSnapshot: true })),
  ];
  const known = new Set(all.map(({ name }) => name));
  const of = parent => all.filter(node => (known.has(node.parent) ? node.parent : undefined) === parent);
  const grown = (parent, depth) => of(parent).flatMap(node => [{ ...node, depth }, ...grown(node.name, depth + 1)]);
  return grown(undefined, 0);
}

const columns = (replicas, ask) => [
  { name: 'Name', of: node => html`<span class="node" style=${{ paddingLeft: `${1.4 * node.depth}rem` }}>
    ${node.depth > 0 && html`<span class="soft" aria-hidden="true">└ </span>`}${node.name}</span>` },
  { name: 'What', of: what(replicas) },
  { name: 'Size', of: node => bytes(node.size_bytes), number: true },
  { name: 'Holds', of: node => bytes(node.isSnapshot ? node.unique_bytes : node.raw_bytes), number: true },
  { name: 'Controller', of: node => node.controller, number: true },
  { name: 'Clients', of: node => node.clients, number: true },
  { name: '', of: node => html`<${Verbs} of=${verbs(node, ask)}/>` },
];

const what = replicas => node => {
  if (node.isSnapshot) return html`snapshot, <span title=${instant(node.made_at)}>${ago(node.made_at)}</span>${node.read_only && ', read-only'}`;
  const replica = replicas.find(({ volume }) => volume === node.name);
  const kind = [node.layout, node.thick ? 'thick' : 'thin', node.read_only && 'read-only', node.made_of && 'clone'].filter(Boolean).join(', ');
  return html`${kind} ${node.follows && html`<${Badge} mood="warn">copy of ${replica?.source ?? 'another one'}<//>`}`;
};

const note = node => (node.lost && 'it is lost: it can only be deleted') || (node.doomed && 'it is lost at the next start: copy it to another volume before');

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
