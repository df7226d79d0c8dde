// The line to the session: it is opened again by itself, and says in words what is wrong.

const PROTOCOL = "evkf";
const CARRIER = "evkf.token.";
const KEPT = "evkf.token";
const ENDED = 1001;
const DIED = 4000;
const FIRST_MS = 250;
const LONGEST_MS = 5000;
const QUIET_MS = 2000;
const SAID_MS = 5000;

/** The token, from the part of the address that is never sent, or from before; it is kept per tab. */
function readToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEPT, found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEPT) ?? "";
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token.trim());
}

const FOLDER = "Paste the one in the file “token” of the session's folder.";

export class Connection {
  constructor({ onHello, onMessage, onWords }) {
    Object.assign(this, { onHello, onMessage, onWords });
    this.hello = null;
    this.waits = FIRST_MS;
    this.trouble = "Connecting…";
    this.farewell = null; // what the session said last
    this.ended = false; // in good order
    this.needsToken = false;
    this.newest = -Infinity;
    this.passing = null;
    this.report = this.before = null; // the last, and the last of a session that had begun
    setInterval(() => this.tell(), 250);
  }

  get token() {
    return readToken();
  }

  open() {
    clearTimeout(this.again);
    this.socket?.close();
    const { token } = this;
    const address = new URL("page", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    address.hash = "";
    const protocols = token ? [PROTOCOL, CARRIER + token] : [PROTOCOL];
    let socket;
    try {
      socket = new WebSocket(address, protocols);
    } catch {
      this.needsToken = true;
      this.trouble = `This is not a token. ${FOLDER}`;
      this.tell();
      return;
    }
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.receive(data);
    socket.onclose = ({ code, reason }) => {
      if (socket === this.socket) this.lose(code, reason);
    };
  }

  receive(data) {
    try {
      if (typeof data === "string") this.greet(JSON.parse(data));
      else if (this.hello !== null && this.onMessage(data)) this.newest = performance.now();
    } catch (error) {
      this.say(`A message could not be read and was passed over: ${error.message}.`, "wait");
    }
  }

  greet(hello) {
    if (!Number.isInteger(hello?.latents) || !Number.isInteger(hello?.channels) || !(hello.bin_width > 0)) {
      throw new Error("a greeting that says too little");
    }
    const before = this.hello;
    this.hello = hello;
    this.waits = FIRST_MS;
    this.newest = performance.now();
    if (before?.live === false && hello.live !== false) this.say("The session was resumed.", "good");
    else if (this.trouble !== null && before !== null) this.say("Connected again.", "good");
    this.trouble = this.farewell = null;
    this.needsToken = this.ended = false;
    this.onHello(hello);
    this.tell();
  }

  /** Take note of a report: of a process that took the session up anew, too. */
  heed(report) {
    const before = this.before;
    this.report = report;
    if (report.phase === "starting") return;
    this.before = report;
    if (before && report.taken < before.taken && report.bins >= before.bins) {
      this.say(`The session was resumed at bin ${(report.bins - report.taken).toLocaleString("en")}.`, "good");
    }
  }

  async lose(code, reason) {
    const wait = this.waits;
    this.waits = Math.min(2 * this.waits, LONGEST_MS);
    this.again = setTimeout(() => this.open(), wait * (0.8 + 0.4 * Math.random()));
    const lost = this.socket;
    // What was said before holds no longer; what is answered meanwhile is shown.
    if (this.trouble === null && this.passing?.tone !== "bad") this.passing = null;
    const words = await this.diagnose(code, reason);
    if (this.socket !== lost && this.socket?.readyState === WebSocket.OPEN) return;
    this.trouble = words;
    this.tell();
  }

  /** Why it was closed. A browser does not say why a socket was refused, so something else is asked for. */
  async diagnose(code, reason) {
    if (code === DIED || (code === ENDED && reason)) this.ended = code === ENDED;
    if (code === DIED) this.farewell = `${this.died()} This page then goes on by itself.`;
    if (code === ENDED && reason) this.farewell = `${sentence(reason)} Waiting for it to be resumed…`;
    if (code === DIED || (code === ENDED && reason)) return this.farewell;
    if (code === 1013 && reason) return `${sentence(reason)} Trying again…`;
    let answer;
    try {
      answer = await fetch("health", { headers: this.headers, cache: "no-store" });
    } catch {
      return this.farewell ?? "The server does not answer: it has ended, or the network is down. Trying again…";
    }
    if (answer.status === 401) {
      this.needsToken = true;
      return this.token ? `The token is wrong. ${FOLDER}` : `The token is missing. ${FOLDER}`;
    }
    if (answer.status === 403) return "The server does not accept the address this page was opened at.";
    return "The connection was lost. Trying again…";
  }

  get headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  send(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  /** Ask the session for something; whether it was heard. */
  async act(ask, text = "") {
    let answer;
    try {
      const headers = { ...this.headers, "Content-Type": "application/json" };
      answer = await fetch("actions", { method: "POST", headers, body: JSON.stringify({ ask, text }) });
    } catch {
      this.say(`“${ask}” did not get through: the server does not answer.`, "bad");
      return false;
    }
    if (answer.ok) return true;
    if (answer.status === 401) {
      this.needsToken = true;
      const what = this.token ? "the token is wrong" : "the token is missing";
      this.say(`“${ask}” was refused: ${what}. ${FOLDER}`, "bad");
    } else {
      const told = await answer.json().catch(() => ({}));
      this.say(`“${ask}” was refused: ${told.text ?? answer.status}.`, "bad");
    }
    return false;
  }

  /** Say something that passes. */
  say(text, tone) {
    this.passing = { text, tone, until: performance.now() + SAID_MS };
    this.tell();
  }

  tell() {
    const [text, tone] = this.words();
    this.onWords(text, tone, this.needsToken);
  }

  died() {
    const why = this.report?.phase === "failed" ? this.report.why : "";
    const resume = ["evkf resume", this.hello?.folder].filter(Boolean).join(" ");
    return `The engine has died${why ? `: ${why}` : ""}. Go on with “${resume}”.`;
  }

  words() {
    const now = performance.now();
    if (this.passing && now < this.passing.until) return [this.passing.text, this.passing.tone];
    if (this.trouble !== null) {
      return [this.trouble, !this.needsToken && (this.ended || this.hello === null) ? "wait" : "bad"];
    }
    const { hello, report } = this;
    if (report?.phase === "failed" || (hello.live === false && report?.phase !== "closed")) {
      return [this.died(), "bad"];
    }
    if (hello.live === false || report?.phase === "closed") return ["The session has ended; this is how it stood.", "wait"];
    if (report?.phase === "starting") return ["The session is starting.", "wait"];
    const viewed = hello.mode === "view";
    const none = !viewed && report?.bins === 0;
    const quiet = viewed ? 0 : now - this.newest;
    if (quiet > Math.max(QUIET_MS, 20e3 * hello.bin_width)) {
      if (none) return ["No bins have come yet. Is the rig sending? The terminal says what the session waits for.", "wait"];
      return [`The stream has stopped: no bins for ${(quiet / 1000).toFixed(0)} s. Is the rig sending?`, "bad"];
    }
    if (report?.phase === "degraded") return [`The disk refuses: nothing is acknowledged. ${report.why ?? ""}`, "bad"];
    if (none) return ["Ready for the first bin.", "good"];
    return [viewed ? "Shown from its journal." : "Live.", "good"];
  }
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
