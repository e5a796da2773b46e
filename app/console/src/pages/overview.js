// The node at a glance: what is not well, what goes on, how much room is left.

import { Chart } from '../chart.js';
import { ago, bytes, number, percent, seconds } from '../format.js';
import { html } from '../html.js';
import { Heading, Tile, given } from '../parts.js';
import { Running } from './jobs.js';
import { Problems, Space } from './disks.js';

export const title = 'Overview';
export const needs = () => ['jobs'];

/** So that a grid of bytes has round numbers of a unit. */
const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);

const perSecond = value => `${number(value)}/s`;
const bytesPerSecond = value => `${bytes(value)}/s`;

export function Page({ status, tier, jobs, history, ask }) {
  const chart = (title, format, lines, names, scale) => html`
    <${Chart} title=${title} format=${format} lines=${lines} data=${history.series(...names)} ...${scale}/>`;
  return html`
    <${Heading} title=${title}>Serves ${status.data}; started ${ago(status.started_at)}.<//>
    <${Problems} status=${status}/>
    <${Tiles} ...${{ status, tier, now: history.latest }}/>
    <${Running} jobs=${jobs} ask=${ask}/>
    <div class="charts">
      ${chart('Requests', perSecond, ['reads', 'writes'], ['reads', 'writes'])}
      ${chart('Data', bytesPerSecond, ['read', 'written'], ['readBytes', 'writtenBytes'], { steps: POWERS })}
      ${chart('Time of an NBD request', seconds, ['read, half', 'write, half', 'read, 99 %', 'write, 99 %'],
        ['readP50', 'writeP50', 'readP99', 'writeP99'])}
      ${chart('Served by the fast tier', percent, ['of requests'], ['fastShare'], { most: 1 })}
    </div>
    <${Space} pool=${status.pool}/>`;
}

function Tiles({ status, tier, now }) {
  const { pool, volumes, controllers } = status;
  const clients = volumes.reduce((sum, { clients }) => sum + clients, 0);
  const dirty = controllers.reduce((sum, { dirty_bytes }) => sum + dirty_bytes, 0);
  return html`
    <div class="tiles">
      <${Tile} name="Requests" value=${now ? perSecond(now.reads + now.writes) : '–'}>
        ${now ? `${bytesPerSecond(now.readBytes)} read, ${bytesPerSecond(now.writtenBytes)} written` : 'counting'}<//>
      <${Tile} name="Room" value=${bytes(pool.free_bytes)}>free of ${bytes(pool.data_bytes)}, before redundancy<//>
      <${Tile} name="Volumes" value=${volumes.length}>${number(clients)} connections have them open<//>
      <${Tile} name="Write buffer" value=${bytes(dirty)}>durable or to be, and not at its place yet<//>
      ${given(tier, ({ reads, writes, fast_reads, fast_writes }) => html`
        <${Tile} name="Fast tier" value=${reads + writes > 0 ? percent((fast_reads + fast_writes) / (reads + writes)) : '–'}>
          of all requests since the start<//>`)}
    </div>`;
}
