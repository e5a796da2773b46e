// What pages are made of.

import { Refusal } from './api.js';
import { bytes, percent } from './format.js';
import { html } from './html.js';

/** What the server has, shown by `show`; or why it does not say. */
export function given(resource, show) {
  if (!(resource instanceof Refusal)) return show(resource);
  return html`<p class="refusal" role="alert">${resource.message}${resource.remedy && html`<br/>${resource.remedy}`}</p>`;
}

/** A word with a colour: `good`, `warn`, `bad` or none. */
export const Badge = ({ mood, children }) => html`<span class="badge ${mood ?? ''}">${children}</span>`;

/** A figure with its name, and what it is made of below. */
export const Tile = ({ name, value, children }) => html`
  <div class="card tile"><h3>${name}</h3><p class="value">${value}</p>${children && html`<p class="soft">${children}</p>`}</div>`;

/** How much of something is done or used, 0 to 1. */
export const Bar = ({ part, label }) => html`
  <span class="bar"><progress max="1" value=${part} aria-label=${label}></progress> ${percent(part)}</span>`;

/** Parts of a whole beside each other: `[name, bytes]` each; the last one is what is left. */
export function Stack({ parts }) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const colour = at => `part-${at === parts.length - 1 ? 'rest' : at}`;
  return html`
    <div class="stack" role="img" aria-label=${parts.map(([name, value]) => `${name} ${bytes(value)}`).join(', ')}>
      ${parts.map(([, value], at) => html`<span class=${colour(at)} style=${{ width: `${100 * value / whole}%` }}></span>`)}
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
  return html`
    <div class="scroll"><table>
      <thead><tr>${columns.map(column => html`<th scope="col" class=${align(column)}>${column.name}</th>`)}</tr></thead>
      <tbody>${rows.map(row => html`<tr key=${id(row)}>${cells(row)}</tr>${note?.(row) && html`
        <tr class="note" key=${`${id(row)} note`}><td colspan=${columns.length}>${note(row)}</td></tr>`}`)}</tbody>
    </table></div>`;
}

/** What can be done, as buttons: `[verb, what it does]` each. */
export const Verbs = ({ of }) => html`
  <span class="verbs">${of.map(([verb, act]) => html`<button type="button" onClick=${act}>${verb}</button>`)}</span>`;

/** A heading, what can be done with what stands below it, and what that is. */
export const Heading = ({ title, verbs, children }) => html`
  <header class="heading"><h2>${title}</h2>${verbs && html`<${Verbs} of=${verbs}/>`}${children && html`<p class="soft">${children}</p>`}</header>`;
