// Figures as people read them, and sizes as people write them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** Three digits that count: 1234 is `1,234`, 12.34 is `12.3`, 1.234 is `1.23`. */
export function number(value) {
  if (value === 0) return '0';
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  const text = value.toLocaleString('en', { maximumFractionDigits: digits });
  return text === '0' || text === '-0' ? value.toPrecision(1) : text;
}

/** Bytes in the unit that fits them: `1.5 GiB`. */
export function bytes(value) {
  let unit = 0;
  for (; value >= 1024 && unit < UNITS.length - 1; unit += 1) value /= 1024;
  return `${number(value)} ${UNITS[unit]}`;
}

/** A place in a volume, exactly: `1,228.5 MiB`. */
export const place = offset => `${(offset / 2 ** 20).toLocaleString('en', { maximumFractionDigits: 20 })} MiB`;

/** Seconds in the unit that fits them: `3.2 ms`, `5 min`. */
export function seconds(value) {
  if (value < 1e-3) return `${number(value * 1e6)} µs`;
  if (value < 1) return `${number(value * 1e3)} ms`;
  if (value < 120) return `${number(value)} s`;
  if (value < 7200) return `${number(value / 60)} min`;
  if (value < 172_800) return `${number(value / 3600)} h`;
  return `${number(value / 86_400)} days`;
}

/** A part of a whole, 0 to 1, in per cent. */
export const percent = value => `${number(value * 100)} %`;

/** So many of a thing: `1 snapshot`, `2 snapshots`. */
export const count = (many, thing) => `${many.toLocaleString('en')} ${thing}${many === 1 ? '' : 's'}`;

/** An instant, as the API has it, by the clock of whoever reads. */
export const instant = text => new Date(text).toLocaleString('sv');

/** How long ago that was, by the clock of whoever reads. */
export const ago = text => before((Date.now() - new Date(text)) / 1000);

/** So many seconds ago. */
export function before(s) {
  const [unit, name] = [[86_400, 'day'], [3600, 'hour'], [60, 'minute'], [1, 'second']].find(([unit]) => s >= 1.5 * unit) ?? [1, 'second'];
  return `${count(Math.max(1, Math.round(s / unit)), name)} ago`;
}

/** Bytes of a size as `kura` takes it: `10G`, `512M`, `1.5T`, or bytes. Throws what is wrong with it. */
export function parseSize(text) {
  const parts = /^\s*(\d+(?:\.\d+)?)\s*([KMGTPE]?)(?:i?B)?\s*$/i.exec(text);
  if (!parts) throw new Error(`${text || 'nothing'} is no size: write 10G or 512M`);
  const value = Number(parts[1]) * 1024 ** ' KMGTPE'.indexOf(parts[2].toUpperCase() || ' ');
  if (!Number.isSafeInteger(value)) throw new Error(`${text} is no whole number of bytes that can be told apart here`);
  return value;
}
