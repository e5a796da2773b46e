// The tiers: how much of the load the fast one serves, which parts of a volume are hot and where they lie, and why.

import { change, path } from '../api.js';
import { ago, bytes, number, parseSize, percent, place, seconds } from '../format.js';
import { HeatMap } from '../heat_map.js';
import { html } from '../html.js';
import { Heading, Stack, Table, Tile, address, given } from '../parts.js';

export const title = 'Tiering';

/** How many moves are asked for, and how many of the busiest regions are listed. */
const [MOVES, BUSIEST] = [20, 8];

const moves = `/api/v1/tier/moves?limit=${MOVES}`;
const heat = volume => path`volumes/${volume}/heat`;
const rules = volume => path`volumes/${volume}/tier`;
const why = (volume, offset) => `${path`volumes/${volume}/tier/why`}?offset_bytes=${offset}`;

/** The volume that is shown, as far as there is one: the one the address names, else the first. */
const shown = ([name], status) => (name ? status?.volumes.find(volume => volume.name === name) : status?.volumes[0]);

export function needs(rest, { status }) {
  const name = shown(rest, status)?.name;
  if (!name) return [moves];
  return [moves, heat(name), rules(name), ...(rest[1] ? [why(name, rest[1])] : [])];
}

const at = (...words) => address('tier', ...words);

export function Page({ status, tier, history, rest, ask, ...resources }) {
  const volume = shown(rest, status);
  const none = rest[0] ? `No volume is called ${rest[0]}.` : 'There is no volume.';
  return html`
    <${Heading} title=${title}/>
    ${given(tier, tier => html`<${Tiers} tier=${tier} now=${history.latest}/>`)}
    <p class="tabs" role="navigation" aria-label="Volumes">${status.volumes.map(({ name }) => html`
      <a href=${at(name)} aria-current=${name === volume?.name ? 'true' : undefined}>${name}</a>`)}</p>
    ${volume ? html`<${Heat} volume=${volume} chosen=${rest[1]} resources=${resources} ask=${ask}/>` : html`<p class="soft">${none}</p>`}
    <${Heading} title="Moves">The newest ${MOVES}.<//>
    ${given(resources[moves], rows => html`<${Table} columns=${MOVE} rows=${rows.toReversed()} id=${move => `${move.controller} ${move.number}`}
      note=${({ failed }) => failed} empty="Nothing has moved yet."/>`)}`;
}

const Tiers = ({ tier, now }) => html`
  <p class="soft">${tier.policy ? `Policy ${tier.policy.policy}, regions of ${bytes(tier.region_bytes)}.` : 'No policy is at work.'}</p>
  ${tier.hindrance && html`<p class="refusal" role="alert">${tier.hindrance}</p>`}
  <${Tiles} tier=${tier} now=${now}/>
  <section class="card"><h3>Fast tier of ${bytes(tier.total_bytes)}, one copy counted</h3>
    <${Stack} whole=${tier.total_bytes} parts=${[['as the disks have it', Math.max(0, tier.valid_bytes - tier.stale_bytes)],
      ['newer than the disks', tier.stale_bytes],
      ['held, and not filled', Math.max(0, tier.total_bytes - tier.free_bytes - tier.valid_bytes)], ['free', tier.free_bytes]]}/></section>`;

const Tiles = ({ tier, now }) => html`
  <div class="tiles">
    <${Tile} name="Served by the fast tier" value=${typeof now?.fastShare === 'number' ? percent(now.fastShare) : '–'}>of requests, now<//>
    <${Tile} name="Slow disks" value=${percent(tier.slow_utilisation)}>busy, and ${number(tier.slow_queue)} requests at the busiest<//>
    <${Tile} name="Waiting" value=${bytes(tier.waiting_bytes)}>of regions to be moved<//>
    <${Tile} name="Policy's memory" value=${bytes(tier.policy_bytes)}/>
  </div>`;

function Heat({ volume, chosen, resources, ask }) {
  const go = offset => { location.hash = at(volume.name, String(offset)); };
  return html`
    <section class="card"><h3>${volume.name}, by address: what was asked of it in the last interval</h3>
      ${given(resources[heat(volume.name)], ({ region_bytes, regions }) => html`
        <${HeatMap} size=${volume.size_bytes} region=${region_bytes} regions=${regions} chosen=${chosen && Number(chosen)} go=${go}/>
        <${Table} columns=${regionColumns(volume.name)} rows=${busiest(regions)} id=${of => of.offset_bytes}
          empty="Nothing was asked of it just now."/>`)}
      ${chosen && given(resources[why(volume.name, chosen)], of => html`<${Why} offset=${Number(chosen)} of=${of}/>`)}
      ${given(resources[rules(volume.name)], of => html`<p>${told(of)} <button type="button" onClick=${() => ask(rule(volume.name, of))}>Change …</button></p>`)}
    </section>`;
}

const requests = ({ reads, writes }) => reads + writes;

const busiest = regions => regions.filter(requests).sort((one, other) => requests(other) - requests(one)).slice(0, BUSIEST);

const regionColumns = volume => [
  { name: 'Busiest regions, at', of: of => html`<a href=${at(volume, String(of.offset_bytes))} title="why it lies where it does">${place(of.offset_bytes)}</a>` },
  { name: 'Reads', of: ({ reads }) => number(reads), number: true },
  { name: 'Writes', of: ({ writes }) => number(writes), number: true },
  { name: 'In the fast tier', of: ({ valid_bytes }) => bytes(valid_bytes), number: true },
  { name: 'Newer there', of: ({ stale_bytes }) => bytes(stale_bytes), number: true },
];

const Why = ({ offset, of }) => html`
  <div class="why"><h3>The region at ${place(offset)}</h3>
    ${of.lies_in && html`<p>Nobody has written to it here: it is a part of ${of.lies_in}.</p>`}
    <p>${bytes(of.region.valid_bytes)} of its ${bytes(of.region_bytes)} lie in the fast tier. ${of.verdict ?? 'The policy knows nothing of it.'}</p>
    ${of.last_move && html`<p>Moved last ${ago(of.last_move.decided_at)}, to the ${of.last_move.to} tier: ${of.last_move.reason}</p>`}
  </div>`;

const MOVE = [
  { name: 'Volume', of: ({ volume }) => volume },
  { name: 'At', of: ({ offset_bytes }) => place(offset_bytes), number: true },
  { name: 'Size', of: ({ len_bytes }) => bytes(len_bytes), number: true },
  { name: 'To', of: ({ to }) => to },
  { name: 'Why', of: ({ reason }) => reason },
  { name: 'When', of: ({ decided_at }) => ago(decided_at) },
  { name: 'Took', of: ({ took_s, failed }) => (failed ? 'failed' : took_s === undefined ? 'goes on' : seconds(took_s)), number: true },
];

function told({ pin, floor_bytes, ceiling_bytes }) {
  if (pin) return `Pinned: all of it is held in the ${pin} tier, as far as there is room.`;
  const floor = floor_bytes > 0 && `${bytes(floor_bytes)} of it stay in the fast tier once they are there`;
  const ceiling = ceiling_bytes > 0 && `${bytes(ceiling_bytes)} of it may lie there`;
  return `The policy decides what of it lies in the fast tier${[floor, ceiling].filter(Boolean).map(text => `; ${text}`).join('')}.`;
}

const size = value => (value % 2 ** 20 === 0 ? `${value / 2 ** 20}M` : String(value));

const rule = (volume, { pin, floor_bytes, ceiling_bytes }) => ({
  title: `Tiers of ${volume}`, verb: 'Change',
  fields: [
    { name: 'pin', label: 'Hold all of it in', type: 'select', value: pin ?? 'none',
      options: [['none', 'either tier: the policy decides'], ['fast', 'the fast tier'], ['slow', 'the slow tier']] },
    { name: 'floor', label: 'As much stays in the fast tier once it is there', value: size(floor_bytes) },
    { name: 'ceiling', label: 'The most of it there', value: size(ceiling_bytes), hint: '0 is no limit' },
  ],
  // A pinned volume has neither a floor nor a ceiling.
  act: ({ pin, floor, ceiling }) => change('PATCH', rules(volume), pin === 'none'
    ? { pin, floor_bytes: parseSize(floor), ceiling_bytes: parseSize(ceiling) }
    : { pin, floor_bytes: 0, ceiling_bytes: 0 }),
});
