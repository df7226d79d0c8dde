// What is remembered of the stream: the last seconds, bounded however long it runs.

const HELD = 500; // bins that a message has at most, and of which only the last may be known

/** Rows of numbers; the newest overwrite the oldest. */
export class Ring {
  constructor(room, width = 1, Kind = Float64Array) {
    this.room = room;
    this.width = width;
    this.values = new Kind(room * width);
    this.total = 0;
  }

  get length() {
    return Math.min(this.total, this.room);
  }

  push(array, from = 0, count = array.length / this.width) {
    for (let row = from; row < from + count; row += 1) {
      const at = (this.total % this.room) * this.width;
      for (let i = 0; i < this.width; i += 1) this.values[at + i] = array[row * this.width + i];
      this.total += 1;
    }
  }

  /** Number of a row, the oldest being 0. */
  get(row, column = 0) {
    return this.values[((this.total - this.length + row) % this.room) * this.width + column];
  }

  get last() {
    const at = ((this.total - 1 + this.room) % this.room) * this.width;
    return this.values.slice(at, at + this.width);
  }

  clear() {
    this.total = 0;
  }
}

/**
 * Channels over time, as a picture has them: channels are grouped into rows and bins into columns,
 * so that however many there are, a picture is as large as a screen shows.
 *
 * NaN is what nothing is known of.
 */
export class Columns {
  constructor(channels, bins, { rows = 160, columns = 400, most = true } = {}) {
    this.channels = channels;
    this.rows = Math.min(channels, rows);
    this.binsPer = Math.max(1, Math.ceil(bins / columns));
    this.columns = Math.ceil(bins / this.binsPer);
    this.values = new Float32Array(this.rows * this.columns).fill(NaN);
    this.most = most; // of a group the largest is shown, or else the mean
    this.newest = this.first = -1;
    this.row = new Uint32Array(channels);
    this.share = new Float32Array(this.rows);
    for (let n = 0; n < channels; n += 1) {
      this.row[n] = Math.floor((n * this.rows) / channels);
      this.share[this.row[n]] += 1;
    }
    this.share = this.share.map((count) => 1 / count);
  }

  /** Take in a bin; `lost` is the number that stands for what is not known. */
  put(seq, array, at, lost) {
    const column = Math.floor(seq / this.binsPer);
    this.advance(column, null);
    if (column <= this.newest - this.columns) return;
    const place = column % this.columns;
    const { columns, values, channels, row, share, most } = this;
    for (let n = 0; n < channels; n += 1) {
      const value = array[at + n];
      if (value === lost) continue;
      const cell = row[n] * columns + place;
      if (most) values[cell] = values[cell] > value ? values[cell] : value;
      else if (n === 0 || row[n] !== row[n - 1]) values[cell] = value * share[row[n]];
      else values[cell] += value * share[row[n]];
    }
  }

  /** Go on to a column; those between keep what was last known if `held`, unless they are many. */
  advance(column, held) {
    if (column <= this.newest) return;
    if (this.first < 0) this.first = column;
    const { rows, columns, values } = this;
    const from = Math.max(this.newest + 1, column - columns + 1);
    const before = this.newest % columns;
    const keeps = held && this.newest >= 0 && (column - this.newest) * this.binsPer <= HELD;
    for (let next = from; next <= column; next += 1) {
      for (let row = 0; row < rows; row += 1) {
        const at = row * columns;
        values[at + (next % columns)] = keeps ? values[at + before] : NaN;
      }
    }
    this.newest = column;
  }

  /** A fresh picture, oldest column first and first channel at the bottom, painted by `colour`. */
  paint(colour) {
    const { rows, columns, values, newest, first } = this;
    const none = newest < 0 ? columns : Math.max(0, first - (newest - columns + 1));
    const pixels = new Uint32Array(rows * columns);
    for (let row = 0; row < rows; row += 1) {
      let from = (newest + 1) % columns;
      for (let column = 0; column < columns; column += 1) {
        if (column >= none) pixels[row * columns + column] = colour(values[row * columns + from]);
        from += 1;
        if (from === columns) from = 0;
      }
    }
    return pixels;
  }

  clear() {
    this.values.fill(NaN);
    this.newest = this.first = -1;
  }
}

/** How often numbers of the last so many fell where, on a logarithmic scale. */
export class Histogram {
  constructor(low, high, bars, room) {
    [this.low, this.high, this.bars] = [Math.log10(low), Math.log10(high), bars];
    this.counts = new Uint32Array(bars);
    this.ring = new Ring(room, 1, Int16Array);
    this.missing = 0;
  }

  /** Take in a number; NaN is one that is missing. */
  put(value) {
    const { ring } = this;
    if (ring.total >= ring.room) this.change(ring.get(0), -1);
    const place = ((Math.log10(value) - this.low) / (this.high - this.low)) * this.bars;
    const bar = Number.isNaN(value) ? -1 : Math.min(Math.max(Math.floor(place), 0), this.bars - 1);
    ring.push([bar]);
    this.change(bar, 1);
  }

  change(bar, by) {
    if (bar < 0) this.missing += by;
    else this.counts[bar] += by;
  }

  clear() {
    this.counts.fill(0);
    this.ring.clear();
    this.missing = 0;
  }
}

/** A curve over the whole session: when it has too many points, every other is forgotten. */
export class Course {
  constructor(room = 512) {
    this.room = room;
    this.clear();
  }

  push(row) {
    this.seen += 1;
    this.last = row;
    if (this.seen % this.every === 0) this.rows.push(row);
    if (this.rows.length >= this.room) {
      this.rows = this.rows.filter((_, index) => index % 2 === 1);
      this.every *= 2;
    }
  }

  clear() {
    this.rows = [];
    this.every = 1;
    this.seen = 0;
    this.last = null;
  }
}
