// Lines over time, drawn by uPlot, which index.html loads.

import { Component } from '../vendor/preact.mjs';
import { html } from './html.js';
import { SPAN_S } from './history.js';

const HEIGHT_PX = 170;

const clock = s => new Date(1000 * s).toLocaleTimeString('sv');

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);

/**
 * A chart of `data` as `History.series` gives it; `lines` names each of them, and `format` writes their values. `most` is the highest
 * value that there can be, and `steps` are the distances that the grid's lines may have, where these are to be given.
 */
export class Chart extends Component {
  componentDidMount() {
    this.plot = new window.uPlot(this.options(), this.props.data, this.field);
    this.watch = new ResizeObserver(() => this.plot.setSize({ width: this.field.clientWidth, height: HEIGHT_PX }));
    this.watch.observe(this.field);
  }

  componentDidUpdate() {
    this.plot.setData(this.props.data);
  }

  componentWillUnmount() {
    this.watch.disconnect();
    this.plot.destroy();
  }

  options() {
    const { lines, format, most, steps } = this.props;
    // Asked for at each drawing: whoever looks may turn to a dark screen.
    const axis = { stroke: () => css('--soft'), grid: { stroke: () => css('--line'), width: 1 }, ticks: { show: false } };
    const line = (label, at) => ({
      label, stroke: () => css(`--line-${at + 1}`), width: 1.5, points: { show: false },
      value: (_, value) => (value === null || value === undefined ? '–' : format(value)),
    });
    return {
      width: this.field.clientWidth, height: HEIGHT_PX, cursor: { drag: { x: false, y: false } },
      scales: {
        x: { range: (_, from, to) => [Math.min(from ?? to - SPAN_S / 5, to - SPAN_S / 5), to] },
        y: { range: (_, __, to) => [0, most ?? (to > 0 ? to * 1.1 : 1)] },
      },
      axes: [{ ...axis, size: 32, values: (_, values) => values.map(clock) }, { ...axis, size: 76, incrs: steps, values: (_, values) => values.map(format) }],
      series: [{ label: 'at', value: (_, value) => (value ? clock(value) : '–') }, ...lines.map(line)],
    };
  }

  render({ title }) {
    return html`<figure class="card chart"><figcaption>${title}</figcaption><div ref=${field => { this.field = field; }}></div></figure>`;
  }
}
