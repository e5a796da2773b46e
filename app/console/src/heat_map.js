// A volume as a field of cells, in the order of addresses: how much was asked of each, and how much of it lies in the fast tier.

import { Component } from '../vendor/preact.mjs';
import { bytes, count, percent, place } from './format.js';
import { html } from './html.js';

/** Cells in a row, the most of them in all, and their size in pixels with the gap after them. */
const [ACROSS, MOST, CELL_PX, GAP_PX] = [64, 2048, 12, 2];

/** The regions of a volume of `size` bytes put into cells; a large volume's are of several regions each, and `busiest` is one's place. */
export function cells(size, region, regions) {
  const all = Math.ceil(size / region);
  const each = Math.ceil(all / MOST);
  const field = Array.from({ length: Math.ceil(all / each) }, (_, at) => ({
    offset: at * each * region, size: Math.min(each * region, size - at * each * region), reads: 0, writes: 0, fast: 0, most: 0, busiest: at * each * region,
  }));
  for (const { offset_bytes, reads, writes, valid_bytes } of regions) {
    const cell = field[Math.floor(offset_bytes / (each * region))];
    if (!cell) continue;
    cell.reads += reads;
    cell.writes += writes;
    cell.fast += valid_bytes;
    if (reads + writes > cell.most) [cell.most, cell.busiest] = [reads + writes, offset_bytes];
  }
  return field;
}

export class HeatMap extends Component {
  state = { under: null };

  componentDidMount() {
    this.draw();
  }

  componentDidUpdate() {
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext('2d');
    const css = getComputedStyle(this.canvas);
    const colour = name => css.getPropertyValue(name);
    const hottest = Math.max(1, ...this.field.map(({ reads, writes }) => reads + writes));
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.field.forEach((cell, at) => {
      const [x, y] = [(at % ACROSS) * CELL_PX, Math.floor(at / ACROSS) * CELL_PX];
      const side = CELL_PX - GAP_PX;
      const asked = cell.reads + cell.writes;
      context.globalAlpha = 1;
      context.fillStyle = colour('--cell');
      context.fillRect(x, y, side, side);
      // One request in a cell is to be seen beside a thousand in another one.
      context.globalAlpha = asked === 0 ? 0 : 0.25 + 0.75 * Math.log1p(asked) / Math.log1p(hottest);
      context.fillStyle = colour('--hot');
      context.fillRect(x, y, side, side);
      context.globalAlpha = 1;
      context.fillStyle = colour('--fast');
      context.fillRect(x, y + side - 3, side * Math.min(1, cell.fast / cell.size), 3);
      if (this.isChosen(cell)) {
        context.strokeStyle = colour('--ink');
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, side - 2, side - 2);
      }
    });
  }

  isChosen({ offset, size }) {
    const { chosen } = this.props;
    return chosen !== undefined && chosen >= offset && chosen < offset + size;
  }

  /** The number of the cell that the pointer is over. */
  under({ offsetX, offsetY }) {
    const scale = this.canvas.width / this.canvas.clientWidth / CELL_PX;
    return Math.floor(offsetY * scale) * ACROSS + Math.floor(offsetX * scale);
  }

  render({ size, region, regions, go }, { under }) {
    this.field = cells(size, region, regions);
    const rows = Math.ceil(this.field.length / ACROSS);
    const cell = this.field[under];
    const said = cell && `${bytes(cell.size)} at ${place(cell.offset)}: ${count(cell.reads, 'read')}, ${count(cell.writes, 'write')}, ${
      percent(cell.fast / cell.size)} in the fast tier`;
    return html`<div>
      <canvas class="heat" width=${ACROSS * CELL_PX} height=${rows * CELL_PX} ref=${canvas => { this.canvas = canvas; }}
        role="img" aria-label="Heat by address; the table below has the busiest regions"
        onPointerMove=${event => this.setState({ under: this.under(event) })} onPointerLeave=${() => this.setState({ under: null })}
        onClick=${event => { const at = this.field[this.under(event)]; if (at) go(at.busiest); }}></canvas>
      <ul class="legend"><li><i class="hot"></i>asked for much</li><li><i class="fast"></i>in the fast tier</li>
        <li>a cell is ${bytes(this.field[0]?.size ?? 0)}</li><li class="soft">${said ?? 'Point at a cell; a click tells why its busiest region lies where it does.'}</li></ul>
    </div>`;
  }
}
