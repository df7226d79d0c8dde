// Buttons, keys and choices.

import { dressAll } from "./figures.js";
import { keepToken } from "./connection.js";
import { keep, toPng, toSvg } from "./export.js";

const get = (id) => document.getElementById(id);

export class Controls {
  constructor(connection, choice) {
    Object.assign(this, { connection, choice, hello: null, frozen: false });
    const click = (id, action) => get(id).addEventListener("click", action);
    click("stop", () => this.stop());
    click("pause", () => this.pause());
    click("freeze", () => this.freeze());
    click("save", () => this.ask("save", "", "A checkpoint is being saved."));
    click("arm", () => this.ask("arm", "", "The stop is lifted: stimulation is armed after five sound estimates."));
    click("reset", () => this.ask("reset", "", "The source begins again."));
    click("png", () => this.png());
    click("svg", () => this.svg());
    click("nwb", (event) => this.nwb(event));
    click("theme", () => this.theme());
    click("help", () => this.help());
    get("speed").addEventListener("change", () => this.ask("speed", get("speed").value, "The speed was changed."));
    get("mark-form").addEventListener("submit", (event) => this.mark(event));
    get("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      keepToken(get("token").value);
      get("token").value = "";
      connection.needsToken = false;
      connection.passing = null;
      connection.open();
    });
    get("horizon").addEventListener("input", () => this.setHorizon(Number(get("horizon").value)));
    get("view").addEventListener("change", () => this.look());
    for (const which of [0, 1, 2]) {
      get(`axis-${which}`).addEventListener("change", () => this.turnTo(which));
    }
    document.addEventListener("keydown", (event) => this.key(event));
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.dress(localStorage.getItem("evkf.theme")));
    matchMedia("(min-width: 1600px)").addEventListener("change", () => dressAll());
    this.dark = dark;
    this.dress(localStorage.getItem("evkf.theme"));
  }

  /** Offer what the session can do. */
  greet(hello) {
    const can = new Set(hello.can ?? []);
    const live = hello.live !== false;
    const anew = this.hello?.session !== hello.session || this.hello?.latents !== hello.latents;
    this.hello = hello;
    for (const [id, ask] of Object.entries({ freeze: "freeze", save: "save", mark: "mark" })) {
      get(id).disabled = !can.has(ask) || !live;
    }
    get("mark-text").disabled = get("mark").disabled;
    get("stop").hidden = !this.mayStop;
    get("arm").hidden = !can.has("arm");
    get("source-group").hidden = !can.has("speed") && !can.has("reset");
    if (hello.speed) this.showSpeed(String(hello.speed));
    get("nwb").hidden = !can.has("download");
    get("session").textContent = this.called;
    get("session").title = `session ${hello.session}, in ${hello.folder || "a folder that is not known"}`;
    document.title = `${this.called} – evkf`;
    get("rates-note").textContent = hello.mode === "view" ? "are not kept in a journal" : "";
    get("forecast-note").textContent = hello.mode === "view" ? "not kept" : "";
    get("truth").hidden = !hello.has_truth;
    document.querySelector(".pair").classList.toggle("alone", !hello.has_truth);
    this.choice.truth = Boolean(hello.has_truth);
    if (anew) this.offerLatents(hello);
    else this.askField();
  }

  /** One that is not on the menu, as --speed and others may ask for, is put there. */
  showSpeed(speed) {
    const menu = get("speed");
    if (![...menu.options].some((option) => option.value === speed)) menu.add(new Option(`${speed} ×`, speed));
    menu.value = speed;
  }

  offerLatents({ latents, horizon, labels }) {
    const name = (index) => labels?.[index] ?? `z${index}`;
    this.choice.drawn = [...Array(Math.min(latents, 2)).keys()];
    this.choice.slots = [];
    this.choice.assign();
    this.choice.axes = [0, 1, 2].map((axis) => Math.min(axis, latents - 1));
    get("chips").replaceChildren(...Array.from({ length: latents }, (_, latent) => {
      const chip = document.createElement("button");
      chip.className = "chip";
      chip.append(`${name(latent)} `);
      const value = document.createElement("output");
      value.id = `mean-${latent}`;
      chip.append(value);
      chip.addEventListener("click", () => { this.choice.toggle(latent); this.showChips(); });
      return chip;
    }));
    get("chips").classList.toggle("many", latents > 5);
    this.showChips();
    for (const which of [0, 1, 2]) {
      const options = Array.from({ length: latents }, (_, latent) => new Option(name(latent), latent));
      get(`axis-${which}`).replaceChildren(...options);
    }
    get("view").value = "plane";
    get("view").hidden = latents < 3;
    document.querySelector(".choices").hidden = latents < 3;
    get("horizon").max = Math.max(horizon, 1);
    get("horizon-group").hidden = !(horizon > 0);
    this.setHorizon(horizon);
    this.look();
  }

  showChips() {
    get("chips").querySelectorAll(".chip").forEach((chip, latent) => {
      const drawn = this.choice.drawn.includes(latent);
      chip.setAttribute("aria-pressed", String(drawn));
      chip.style.setProperty("--colour", drawn ? `var(--c${this.choice.place(latent)})` : "");
    });
  }

  setHorizon(bins) {
    const limit = Math.min(Math.max(bins, 1), Number(get("horizon").max));
    this.choice.horizon = limit;
    get("horizon").value = limit;
    get("horizon-shown").textContent = `${Number((limit * (this.hello?.bin_width ?? 0)).toPrecision(2))} s`;
    this.choice.change();
  }

  look() {
    this.choice.view = get("view").value;
    const { latents } = this.hello;
    const axes = { plane: latents > 1 ? 2 : 0, principal: 0, turning: 3 }[this.choice.view];
    for (const which of [0, 1, 2]) {
      get(`axis-${which}`).hidden = which >= axes || latents < 3;
      get(`axis-${which}`).value = this.choice.axes[which];
    }
    this.askField();
  }

  /** Look along another latent; one that was there already changes places with it. */
  turnTo(which) {
    const chosen = Number(get(`axis-${which}`).value);
    const { axes } = this.choice;
    const other = axes.indexOf(chosen);
    if (other >= 0) axes[other] = axes[which];
    axes[which] = chosen;
    this.look();
  }

  askField() {
    this.choice.change();
    if (this.hello.latents > 1) this.connection.send({ plane: this.choice.plane });
  }

  async ask(ask, text, done) {
    const heard = await this.connection.act(ask, text);
    if (heard) this.connection.say(done, "good");
    return heard;
  }

  /** Unless the session has said that nothing stimulates: it hears a stop also where it shows nothing. */
  get mayStop() {
    return this.hello?.can?.includes("stop") ?? true;
  }

  stop() {
    if (this.mayStop) this.ask("stop", "", "Stimulation was told to stop.");
  }

  freeze() {
    if (!get("freeze").disabled) this.ask(this.frozen ? "thaw" : "freeze", "", this.frozen ? "Learning goes on." : "Learning is frozen.");
  }

  async mark(event) {
    event.preventDefault();
    const text = get("mark-text").value.trim();
    if (!text) this.connection.say("Type what happened, then mark it.", "wait");
    else if (await this.ask("mark", text, `“${text}” was marked.`)) get("mark-text").value = "";
  }

  pause() {
    this.choice.paused = !this.choice.paused;
    get("pause").setAttribute("aria-pressed", String(this.choice.paused));
    get("pause").firstChild.textContent = this.choice.paused ? "Go on " : "Pause ";
    document.body.classList.toggle("paused", this.choice.paused);
  }

  /** What the session says of itself. */
  heed(report) {
    this.frozen = Boolean(report.frozen);
    get("freeze").firstChild.textContent = this.frozen ? "Thaw learning " : "Freeze learning ";
    get("freeze").setAttribute("aria-pressed", String(this.frozen));
  }

  theme() {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("evkf.theme", next);
    this.dress(next);
  }

  dress(theme) {
    document.documentElement.dataset.theme = theme ?? (this.dark.matches ? "dark" : "light");
    dressAll();
    this.choice.change();
  }

  help() {
    get("shortcuts").hidden = !get("shortcuts").hidden;
    get("help").setAttribute("aria-expanded", String(!get("shortcuts").hidden));
  }

  /** What people know the session by: its folder. */
  get called() {
    return this.hello?.folder?.split("/").filter(Boolean).at(-1) ?? this.hello?.session ?? "evkf";
  }

  name(ending) {
    return `${this.called}-${Math.round(Number(get("time").dataset.value) || 0)}s.${ending}`;
  }

  get title() {
    return `evkf ${this.called}, ${get("time").textContent}, bin ${get("bin").textContent}`;
  }

  async png() {
    keep(await toPng(this.title), this.name("png"));
  }

  svg() {
    keep(toSvg(this.title), this.name("svg"));
  }

  async nwb(event) {
    event.preventDefault();
    this.connection.say("The session is being written as NWB…", "wait");
    try {
      const answer = await fetch("download.nwb", { headers: this.connection.headers });
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).text ?? `answer ${answer.status}`);
      keep(await answer.blob(), this.name("nwb"));
      this.connection.say("The NWB file is there.", "good");
    } catch (error) {
      this.connection.say(`The NWB file could not be had: ${error.message}.`, "bad");
    }
  }

  key(event) {
    if (event.key === "Escape") {
      // Whatever else it does: nothing may come before the stop.
      this.stop();
      if (!get("shortcuts").hidden) this.help();
      return;
    }
    const typing = event.target.matches?.("input:not([type=range]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      p: () => this.pause(),
      f: () => this.freeze(),
      c: () => get("save").click(),
      m: () => get("mark-text").focus(),
      g: () => this.png(),
      v: () => this.svg(),
      t: () => this.theme(),
      "?": () => this.help(),
      "[": () => this.setHorizon(this.choice.horizon - 1),
      "]": () => this.setHorizon(this.choice.horizon + 1),
    };
    const digit = Number(event.key);
    const action = keys[event.key.toLowerCase()];
    if (action) {
      event.preventDefault();
      action();
    } else if (digit >= 1 && digit <= (this.hello?.latents ?? 0)) {
      this.choice.toggle(digit - 1);
      this.showChips();
    }
  }
}
