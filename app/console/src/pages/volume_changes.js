// What can be done with volumes, snapshots and schedules: dialogs of dialog.js.

import { change, path } from '../api.js';
import { bytes, parseSize } from '../format.js';

const LAYOUTS = [['', 'the pool\'s default'], ['hot-mirror', 'hot-mirror'], ['raid5', 'raid5'], ['mirror', 'mirror'], ['none', 'none: a lost disk loses data']];
const FORCE = { name: 'force', label: 'Even while clients have it open', type: 'checkbox', hint: 'they get errors from then on' };

/** Also asks whether it would be refused, by the same request with `dry_run`. */
const trial = (method, at, body) => async () => { await change(method, `${at}?dry_run=true`, body); };

export const create = () => ({
  title: 'New volume', verb: 'Make it',
  fields: [
    { name: 'name', label: 'Name' },
    { name: 'size', label: 'Size', value: '10G', hint: 'space is taken as it is written to' },
    { name: 'layout', label: 'Layout', type: 'select', options: LAYOUTS },
    { name: 'thick', label: 'Take all its space at once', type: 'checkbox', hint: 'then no write can meet a full pool' },
  ],
  act: async ({ name, size, layout, thick }) => {
    await change('POST', path`volumes`, { name, size_bytes: parseSize(size), thick, ...(layout ? { layout } : {}) });
  },
});

export const resize = (name, { size_bytes }) => ({
  title: `Resize ${name}`, verb: 'Resize it', text: `It has ${bytes(size_bytes)}. Clients see the new size when they connect anew.`,
  fields: [
    { name: 'size', label: 'New size', value: `${size_bytes / 2 ** 30}G` },
    { name: 'shrink', label: 'It may become smaller', type: 'checkbox', hint: 'what lies beyond its new end is lost' },
  ],
  act: async ({ size, shrink }) => { await change('PATCH', path`volumes/${name}`, { size_bytes: parseSize(size), shrink }); },
});

const deletion = (at, name, text) => ({
  title: `Delete ${name}`, verb: 'Delete it', isGrave: true, text, fields: [FORCE],
  trial: trial('DELETE', at), act: async ({ force }) => { await change('DELETE', `${at}?force=${force}`); },
});

export const deleteVolume = name => deletion(path`volumes/${name}`, name, 'All it holds is lost.');

export const deleteSnapshot = name => deletion(path`snapshots/${name}`, name, 'What only this snapshot still has is lost.');

export const snapshot = name => ({
  title: name ? `Snapshot of ${name}` : 'Snapshots of one instant', verb: 'Take it',
  fields: [
    { name: 'names', label: name ? 'Its name' : 'Their names', value: name && `${name}@`,
      hint: name ? undefined : 'VOLUME@NAME each, with spaces between them: all are taken at one instant' },
    { name: 'read_only', label: 'Read-only', type: 'checkbox' },
  ],
  act: async ({ names, read_only }) => { await change('POST', path`snapshots`, { names: names.trim().split(/\s+/), read_only }); },
});

export const rollBack = (name, { volume }) => {
  const at = path`snapshots/${name}/rollback`;
  return {
    title: `Roll ${volume} back to ${name}`, verb: 'Roll it back', isGrave: true,
    text: `${volume} becomes what it was then: what was written to it since is lost, unless another snapshot has it.`, fields: [FORCE],
    trial: trial('POST', at, {}), act: async ({ force }) => { await change('POST', at, { force }); },
  };
};

export const clone = name => ({
  title: `Clone of ${name}`, verb: 'Make it', text: 'A volume that begins as what the snapshot is. They share what neither changes.',
  fields: [{ name: 'name', label: 'Name of the new volume' }],
  act: async values => { await change('POST', path`snapshots/${name}/clone`, values); },
});

export const schedule = volumes => ({
  title: 'New schedule', verb: 'Take them',
  fields: [
    { name: 'volume', label: 'Volume', type: 'select', options: volumes.map(({ name }) => [name, name]) },
    { name: 'prefix', label: 'What their names begin with', value: 'hourly' },
    { name: 'minutes', label: 'Minutes from one to the next', type: 'number', value: 60 },
    { name: 'keep', label: 'How many are kept', type: 'number', value: 24 },
  ],
  act: async ({ volume, prefix, minutes, keep }) => {
    await change('POST', path`snapshot-schedules`, { volume, prefix, every_s: Math.round(60 * minutes), keep: Number(keep) });
  },
});

export const unschedule = ({ volume, prefix }) => {
  const at = path`snapshot-schedules/${volume}/${prefix}`;
  return {
    title: `Remove the schedule ${prefix} of ${volume}`, verb: 'Remove it', text: 'The snapshots that it took stay.',
    trial: trial('DELETE', at), act: async () => { await change('DELETE', at); },
  };
};
