// What the viewer chose to see.

import { TRACES } from "./figures.js";

export class Choice {
  constructor() {
    this.paused = false;
    this.view = "plane";
    this.axes = [0, 1, 2];
    this.drawn = [0, 1];
    this.slots = [];
    this.horizon = Infinity;
    this.truth = false;
    this.version = 0;
    this.seen = new WeakMap();
  }

  get plane() {
    return this.axes.slice(0, 2);
  }

  /** Have all drawn again. */
  change() {
    this.version += 1;
  }

  /** Whether something changed since somebody asked last. */
  changed(who) {
    const before = this.seen.get(who);
    this.seen.set(who, this.version);
    return before !== this.version;
  }

  /** Place of a latent among the colours: it keeps the one it got. */
  place(latent) {
    const at = this.slots.indexOf(latent);
    return at >= 0 ? at : this.drawn.indexOf(latent);
  }

  toggle(latent) {
    if (this.drawn.includes(latent)) this.drawn = this.drawn.filter((each) => each !== latent);
    else if (this.drawn.length < TRACES) this.drawn = [...this.drawn, latent].sort((a, b) => a - b);
    this.assign();
    this.change();
  }

  assign() {
    this.slots = this.slots.map((each) => (this.drawn.includes(each) ? each : null));
    for (const latent of this.drawn) {
      if (this.slots.includes(latent)) continue;
      const free = this.slots.indexOf(null);
      this.slots[free < 0 ? this.slots.length : free] = latent;
    }
  }
}
