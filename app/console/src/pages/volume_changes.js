// What can be done with volumes, snapshots and schedules: dialogs of dialog.js.

import { change, path, trial } from '../api.js';
import { bytes, parseSize } from '../format.js';

const LAYOUTS = [
  ['', 'the pool\'s default'], ['hot-mirror', 'hot-mirror'], ['raid5', 'raid5'], ['mirror', 'mirror'],
  ['floating', 'floating: in pools made with room for it'], ['none', 'none: a lost disk loses data'],
];

/** What a deletion or a rollback is otherwise refused for. */
const force = hint => ({ name: 'force', label: 'Even while clients have it open', type: 'checkbox', hint });

export const create = () => ({
  title: 'New volume', verb: 'Make it',
  fields: [
    { name: 'name', label: 'Name' },
    { name: 'size', label: 'Size', value: '10G', hint: 'space is taken as it is written to' },
    { name: 'layout', label: 'Layout', type: 'select', options: LAYOUTS },
    { name: 'thick', label: 'Take all its space at once', type: 'checkbox', hint: 'then no write can meet a full pool' },
  ],
  act: ({ name, size, layout, thick }) =>
    change('POST', path`volumes`, { name, size_bytes: parseSize(size), thick, ...(layout ? { layout } : {}) }),
});

export const resize = (name, { size_bytes }) => ({
  title: `Resize ${name}`, verb: 'Resize it', text: `It has ${bytes(size_bytes)}. Clients see the new size when they connect anew.`,
  fields: [
    { name: 'size', label: 'New size', value: `${size_bytes / 2 ** 30}G` },
    { name: 'shrink', label: 'It may become smaller', type: 'checkbox', hint: 'what lies beyond its new end is lost' },
  ],
  act: ({ size, shrink }) => change('PATCH', path`volumes/${name}`, { size_bytes: parseSize(size), shrink }),
});

const deletion = (at, name, text, hint) => ({
  title: `Delete ${name}`, verb: 'Delete it', isGrave: true, text, fields: [force(hint)],
  trial: () => trial('DELETE', at), act: ({ force }) => change('DELETE', `${at}?force=${force}`),
});

export const deleteVolume = name => deletion(path`volumes/${name}`, name, 'All it holds is lost.',
  'they get errors from then on; a copy that follows its source is deleted, too');

export const deleteSnapshot = name => deletion(path`snapshots/${name}`, name, 'What only this snapshot still has is lost.',
  'they get errors from then on; one that a copy cannot do without is deleted, too, and the copy has to begin anew');

const READ_ONLY = { name: 'read_only', label: 'Read-only', type: 'checkbox' };

export const snapshot = name => ({
  title: `Snapshot of ${name}`, verb: 'Take it', fields: [{ name: 'name', label: 'Its name', value: `${name}@` }, READ_ONLY],
  act: ({ name, read_only }) => change('POST', path`snapshots`, { names: [name], read_only }),
});

export const snapshots = () => ({
  title: 'Snapshots of one instant', verb: 'Take them',
  fields: [{ name: 'names', label: 'Their names', type: 'lines', hint: 'VOLUME@NAME, one a line: all are taken at one instant' }, READ_ONLY],
  act: ({ names, read_only }) => change('POST', path`snapshots`, { names: names.split('\n').filter(Boolean), read_only }),
});

export const rollBack = (name, { volume }) => {
  const at = path`snapshots/${name}/rollback`;
  return {
    title: `Roll ${volume} back to ${name}`, verb: 'Roll it back', isGrave: true,
    text: `${volume} becomes what it was then: what was written to it since is lost, unless another snapshot has it.`,
    fields: [force('they find other data from then on; of the object store while S3 is not served, access keys revoked since work again')],
    trial: () => trial('POST', at, {}), act: values => change('POST', at, values),
  };
};

export const clone = name => ({
  title: `Clone of ${name}`, verb: 'Make it', text: 'A volume that begins as what the snapshot is. They share what neither changes.',
  fields: [{ name: 'name', label: 'Name of the new volume' }],
  act: values => change('POST', path`snapshots/${name}/clone`, values),
});

export const schedule = volumes => ({
  title: 'New schedule', verb: 'Take them',
  fields: [
    { name: 'volume', label: 'Volume', type: 'select', options: volumes.map(({ name }) => [name, name]) },
    { name: 'prefix', label: 'What their names begin with', value: 'hourly' },
    { name: 'minutes', label: 'Minutes from one to the next', type: 'number', value: 60 },
    { name: 'keep', label: 'How many are kept', type: 'number', value: 24 },
  ],
  act: ({ volume, prefix, minutes, keep }) =>
    change('POST', path`snapshot-schedules`, { volume, prefix, every_s: Math.round(60 * minutes), keep: Number(keep) }),
});

export const unschedule = ({ volume, prefix }) => {
  const at = path`snapshot-schedules/${volume}/${prefix}`;
  return {
    title: `Remove the schedule ${prefix} of ${volume}`, verb: 'Remove it', text: 'The snapshots that it took stay.',
    trial: () => trial('DELETE', at), act: () => change('DELETE', at),
  };
};
