// What pages are made of.

import { Fragment } from '../vendor/preact.mjs';
import { Refusal } from './api.js';
import { bytes, percent } from './format.js';
import { html } from './html.js';

/** Why the server did not do, or say, something. */
export const Refused = ({ by }) => html`<p class="refusal" role="alert">${by.message}${by.remedy && html`<br/>${by.remedy}`}</p>`;

/** What the server has, shown by `show`; or that it is asked, or why it does not say. */
export function given(resource, show) {
  if (resource === undefined) return html`<p class="soft">Asking …</p>`;
  return resource instanceof Refusal ? html`<${Refused} by=${resource}/>` : show(resource);
}

/** The address of a page, of what there is on it. */
export const address = (...words) => `#/${words.map(encodeURIComponent).join('/')}`;

/** A word with a colour: `good`, `warn`, `bad` or none. */
export const Badge = ({ mood, children }) => html`<span class="badge ${mood ?? ''}">${children}</span>`;

/** A figure with its name, and what it is made of below. */
export const Tile = ({ name, value, children }) => html`
  <div class="card tile"><h3>${name}</h3><p class="value">${value}</p>${children && html`<p class="soft">${children}</p>`}</div>`;

/** How much of a whole is done or used; of nothing, nothing is. */
export function Bar({ value, whole, label }) {
  const part = whole > 0 ? Math.min(1, value / whole) : 0;
  return html`<span class="bar"><progress max="1" value=${part} aria-label=${label}></progress> ${percent(part)}</span>`;
}

/** Parts of a whole beside each other: `[name, bytes]` each; the last one is what is left. */
export function Stack({ whole, parts }) {
  const colour = at => `part-${at === parts.length - 1 ? 'rest' : at}`;
  return html`
    <div class="stack" role="img" aria-label=${parts.map(([name, value]) => `${name} ${bytes(value)}`).join(', ')}>
      ${parts.map(([, value], at) => html`<span class=${colour(at)} style=${{ width: `${100 * value / (whole || 1)}%` }}></span>`)}
    </div>
    <ul class="legend">${parts.map(([name, value], at) => html`<li><i class=${colour(at)}></i>${name} <b>${bytes(value)}</b></li>`)}</ul>`;
}

/**
 * A table. A column is `{ name, of, number }`: its heading, what a row has there, and whether that is a figure. `empty` says that
 * there is none, and what to do to have one.
 */
export function Table({ columns, rows, id, empty, note }) {
  if (rows.length === 0) return html`<p class="soft empty">${empty}</p>`;
  const align = column => (column.number ? 'number' : '');
  const cells = row => columns.map((column, at) => {
    const what = column.of(row);
    return at === 0 ? html`<th scope="row">${what}</th>` : html`<td class=${align(column)}>${what}</td>`;
  });
  const noted = text => text && html`<tr class="note"><td colspan=${columns.length}>${text}</td></tr>`;
  return html`
    <div class="scroll"><table>
      <thead><tr>${columns.map(column => html`<th scope="col" class=${align(column)}>${column.name}</th>`)}</tr></thead>
      <tbody>${rows.map(row => html`<${Fragment} key=${id(row)}><tr>${cells(row)}</tr>${noted(note?.(row))}<//>`)}</tbody>
    </table></div>`;
}

/** What can be done, as buttons: `[verb, what it does]` each. */
export const Verbs = ({ of }) => html`
  <span class="verbs">${of.map(([verb, act]) => html`<button type="button" onClick=${act}>${verb}</button>`)}</span>`;

/** A heading, what can be done with what stands below it, and what that is. */
export const Heading = ({ title, verbs, children }) => html`
  <header class="heading"><h2>${title}</h2>${verbs && html`<${Verbs} of=${verbs}/>`}${children && html`<p class="soft">${children}</p>`}</header>`;
