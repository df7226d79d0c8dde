// Binary messages of the session, as docs/live_protocol.md has them.

const KINDS = {
  f4: Float32Array,
  f8: Float64Array,
  u1: Uint8Array,
  i4: Int32Array,
};

/**
 * Read a message: its header, and its arrays by name, each with a `shape`.
 *
 * Throws an error in plain words if it is not one; nothing beyond its bytes is ever read.
 */
export function decode(buffer) {
  if (buffer.byteLength < 8) throw new Error("a message that is too short");
  const length = new DataView(buffer).getUint32(0, true);
  if (4 + length > buffer.byteLength) throw new Error("a header that is cut off");
  const text = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 4, length));
  const header = JSON.parse(text);
  if (header === null || typeof header !== "object" || !Array.isArray(header.arrays)) {
    throw new Error("a header without arrays");
  }
  const arrays = {};
  let at = 4 + length;
  for (const { name, dtype, shape } of header.arrays) {
    const Kind = KINDS[dtype];
    if (Kind === undefined || !Array.isArray(shape)) throw new Error(`an array of unknown kind`);
    if (!shape.every((size) => Number.isInteger(size) && size >= 0)) {
      throw new Error(`an array of impossible shape`);
    }
    const size = shape.reduce((product, side) => product * side, 1);
    const bytes = size * Kind.BYTES_PER_ELEMENT;
    if (at % 8 !== 0 || at + bytes > buffer.byteLength) throw new Error("an array that is cut off");
    const array = new Kind(buffer, at, size);
    array.shape = shape;
    arrays[String(name)] = array;
    at += Math.ceil(bytes / 8) * 8;
  }
  return { header, arrays };
}

/** Refuse bins that do not fit one another, or the session. */
export function checkBins({ header, arrays }, hello) {
  const bins = arrays.time?.length;
  const { latents, channels } = hello;
  const due = {
    time: [bins],
    mean: [bins, latents],
    var: [bins, latents],
    elbo: [bins],
    flags: [bins],
    latency: [bins],
    counts: [bins, channels],
  };
  if (bins > 0) {
    due.cov = [latents, latents];
    if (!Number.isInteger(header.first)) throw new Error("bins without a number");
  }
  for (const [name, shape] of Object.entries(due)) {
    if (String(arrays[name]?.shape) !== String(shape)) throw new Error(`${name} of wrong shape`);
  }
  for (const name of ["ahead", "ahead_var"]) {
    const shape = arrays[name]?.shape;
    if (shape?.length !== 2 || (shape[0] > 0 && shape[1] !== latents)) {
      throw new Error(`${name} of wrong shape`);
    }
  }
  if (arrays.rate?.shape.length !== 2 || arrays.rate.shape[1] !== channels) {
    throw new Error("rate of wrong shape");
  }
}

/** Refuse a field whose arrays do not fit one another. */
export function checkField({ header, arrays }, hello) {
  const { x, y, u, v, cycle } = arrays;
  if (!(x?.length > 1) || !(y?.length > 1)) throw new Error("a field without a grid");
  for (const each of [u, v]) {
    if (each?.length !== x.length * y.length) throw new Error("a field of wrong shape");
  }
  if (cycle !== undefined && cycle.length > 0 && cycle.shape[1] !== hello.latents) {
    throw new Error("a cycle of wrong shape");
  }
  if (!Array.isArray(header.plane) || header.plane.length !== 2) {
    throw new Error("a field without a plane");
  }
}
