// What all panels share: Bokeh figures without clutter, colours of the theme, ranges that keep still.

const Bokeh = globalThis.Bokeh;
const { Plotting } = Bokeh;
const { ndarray } = Bokeh.require("core/util/ndarray");

const figures = [];

/** Everything that moves is drawn over the axes, which so need not be drawn again. */
export const MOVING = "overlay";
export const TRACES = 6;

let known = new Map();

/** A colour of the theme, as `page.css` has it. */
export function colour(name) {
  if (!known.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return known.get(name);
}

export function traceColour(index) {
  return colour(`c${index % TRACES}`);
}

/** A pixel of a bitmap. */
export function pixel(text) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/**
 * Spare Bokeh what it does at every paint though nothing but data has changed: to measure all labels of
 * axes, and to write style sheets for elements that are not there. This is more than half of its cost.
 * A version of Bokeh that has other names for these is as slow as it was, and no less right.
 */
function lighten(view) {
  const check = view._invalidate_layout_if_needed?.bind(view);
  view._invalidate_layout_if_needed = () => {
    if (view._invalidate_all !== false) check?.();
  };
  for (const each of view.element_views ?? []) each.reposition = () => {};
  for (const each of view.renderer_views.values()) {
    if (each.model.level !== MOVING) continue;
    each.update_position = () => {};
    Object.defineProperty(each, "needs_clip", { value: true });
  }
}

/**
 * A Bokeh figure.
 *
 * `axes` names the axes, with units; `x` and `y` are where the ranges begin and end. Frames begin
 * `left` and end `right` pixels from the border, so that those above one another are aligned.
 */
export class Figure {
  constructor(id, { axes, x, y, left = 58, right = 8, ticks = 5 }) {
    this.element = document.getElementById(id);
    this.borders = { left, right, bottom: axes[0] ? 38 : 20, top: 6 };
    this.plot = Plotting.figure({
      tools: "",
      toolbar_location: null,
      sizing_mode: "stretch_both",
      x_range: new Bokeh.Range1d({ start: x[0], end: x[1] }),
      y_range: new Bokeh.Range1d({ start: y[0], end: y[1] }),
      x_axis_label: axes[0],
      y_axis_label: axes[1],
      background_fill_alpha: 0,
      border_fill_alpha: 0,
      output_backend: "canvas",
    });
    this.plot.toolbar.logo = null;
    for (const axis of this.axes) {
      axis.minor_tick_line_color = null;
      axis.major_tick_in = 0;
      axis.major_tick_out = 4;
      axis.axis_label_standoff = 4;
      axis.major_label_standoff = 3;
      axis.axis_label_text_font_style = "normal";
      axis.ticker.desired_num_ticks = axis === this.axes[0] ? ticks : Math.max(ticks, 4);
    }
    this.paints = 0;
    this.themed = [];
    this.ready = this.show();
    figures.push(this);
    this.dress();
  }

  async show() {
    this.view = await Plotting.show(this.plot, this.element);
    this.view.repainted.connect(() => {
      this.paints += 1;
    });
    lighten(this.view);
  }

  get axes() {
    return [this.plot.below[0], this.plot.left[0]];
  }

  /** How much larger than on a laptop all is to be. */
  get scale() {
    return parseFloat(getComputedStyle(document.documentElement).fontSize) / 13;
  }

  /**
   * Have glyphs drawn; returns the source whose data are replaced whole, never in place.
   *
   * `sizes` are in pixels of a laptop, and grow with the screen, even when it changes.
   */
  add(glyph, empty, properties, sizes = {}, level = MOVING) {
    const source = new Bokeh.ColumnDataSource({ data: empty });
    const renderer = this.plot[glyph]({ ...properties, source });
    renderer.level = level;
    source.renderer = renderer;
    this.follow(() => {
      for (const [name, pixels] of Object.entries(sizes)) {
        const grown = pixels * this.scale;
        renderer.glyph[name] = name.endsWith("font_size") ? `${Math.round(grown)}px` : grown;
      }
    });
    return source;
  }

  /** Have something follow the theme. */
  follow(dress) {
    this.themed.push(dress);
    dress();
  }

  dress() {
    const [soft, line, grid] = ["soft", "line", "grid"].map(colour);
    const { scale } = this;
    const size = (pixels) => Math.round(pixels * scale);
    for (const [side, pixels] of Object.entries(this.borders)) this.plot[`min_border_${side}`] = size(pixels);
    this.plot.outline_line_color = line;
    for (const axis of this.axes) {
      axis.axis_label_text_font_size = `${size(11.5)}px`;
      axis.major_label_text_font_size = `${this.unlabelled === axis ? 0 : size(11)}px`;
      axis.axis_label_text_color = soft;
      axis.major_label_text_color = soft;
      axis.axis_line_color = line;
      axis.major_tick_line_color = line;
    }
    for (const each of this.plot.center) each.grid_line_color = grid;
    for (const dress of this.themed) dress();
  }

  range(name, start, end) {
    if (!Number.isFinite(start) || !Number.isFinite(end)) return; // a figure would stay empty for good
    const range = this.plot[name];
    if (range.start !== start || range.end !== end) range.setv({ start, end });
  }

  /** Width by height of what lies within the axes. */
  get aspect() {
    const { inner_width: width, inner_height: height } = this.plot;
    return width > 0 && height > 0 ? width / height : 1;
  }
}

export function dressAll() {
  known = new Map();
  for (const figure of figures) figure.dress();
}

export function allFigures() {
  return figures;
}

/** A bitmap for `image_rgba`. */
export function bitmap(pixels, rows, columns) {
  return ndarray(pixels, { dtype: "uint32", shape: [rows, columns] });
}

/** A range that grows at once when it must, shrinks only when it is far too large, and else keeps. */
export class Calm {
  constructor(low = -1, high = 1, round = 2) {
    [this.low, this.high, this.round] = [low, high, round];
    this.fresh = true;
  }

  /** Whether it changed. */
  fit(low, high) {
    if (!(high >= low)) return false;
    const span = Math.max(high - low, 1e-9);
    const inside = low >= this.low && high <= this.high;
    if (!this.fresh && inside && span > 0.55 * (this.high - this.low)) return false;
    const unit = 10 ** Math.floor(Math.log10(span)) / this.round;
    this.low = Math.floor((low - 0.04 * span) / unit) * unit;
    this.high = Math.ceil((high + 0.04 * span) / unit) * unit;
    this.fresh = false;
    return true;
  }
}
