// SentencePiece's BPE: a vocabulary.model, text to ids, and ids to text.
const NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, BYTE = 6;
const SPACE = "\u2581";
const utf8 = new TextEncoder();

// The fields of a message of Protocol Buffers: pairs of a number and a value.
function* messageFields(view) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = view.getUint8(at++);
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < view.byteLength) {
    const key = varint(), kind = key % 8;
    let value;
    if (kind === 0) value = varint();
    else {
      const size = kind === 2 ? varint() : kind === 1 ? 8 : 4;
      value = new DataView(view.buffer, view.byteOffset + at, size);
      at += size;
    }
    yield [Math.floor(key / 8), value];
  }
}

const read = (view) => new TextDecoder().decode(view);

function readPiece(view) {
  const piece = { text: "", score: 0, type: NORMAL };
  for (const [field, value] of messageFields(view)) {
    if (field === 1) piece.text = read(value);
    if (field === 2) piece.score = value.getFloat32(0, true);
    if (field === 3) piece.type = value;
  }
  return piece;
}

class Vocabulary {
  constructor(buffer) {
    this.pieces = [];
    this.rules = null;
    let normalizer = null;
    for (const [field, value] of messageFields(new DataView(buffer))) {
      if (field === 1) this.pieces.push(readPiece(value));
      if (field === 3) normalizer = value;
    }
    for (const [field, value] of messageFields(normalizer)) if (field === 2 && value.byteLength) this.rules = value;
    this.ids = new Map(this.pieces.map((piece, id) => [piece.text, id]));
    this.whole = this.pieces.filter((piece) => piece.type === USER_DEFINED).map((piece) => piece.text);
    this.whole.sort((a, b) => b.length - a.length);
  }

  // The longest rule that a text begins with, at a byte: how many bytes it replaces, and by what.
  // The rules are a double array of darts-clone, and behind it the replacements.
  rule(text, at) {
    const size = this.rules.getUint32(0, true), unit = (node) => this.rules.getUint32(4 + 4 * node, true);
    const offset = (value) => (value >>> 10) << ((value & 512) >>> 6);
    let node = offset(unit(0)), best = null;
    for (let i = at; i < text.length; i++) {
      node ^= text[i];
      const value = unit(node);
      if ((value & 0x800000ff) >>> 0 !== text[i]) break;
      node ^= offset(value);
      if ((value >>> 8) & 1) best = [i + 1 - at, 4 + size + (unit(node) & 0x7fffffff)];
    }
    if (!best) return null;
    let end = best[1];
    while (this.rules.getUint8(end)) end++;
    const { buffer, byteOffset } = this.rules;
    return [best[0], read(new Uint8Array(buffer, byteOffset + best[1], end - best[1]))];
  }

  normalized(text) {
    let made = "";
    const all = this.rules ? utf8.encode(text) : [];
    for (let at = 0, from = 0; at < text.length;) {
      const kept = this.whole.find((one) => text.startsWith(one, at));
      const letter = kept ?? String.fromCodePoint(text.codePointAt(at));
      const rule = this.rules && !kept ? this.rule(all, from) : null;
      let bytes = utf8.encode(letter).length, letters = letter.length;
      if (rule) {
        bytes = rule[0];
        letters = read(all.subarray(from, from + bytes)).length;
      }
      made += rule ? rule[1] : letter;
      at += letters;
      from += bytes;
    }
    made = made.replace(/ +/g, " ").replace(/^ | $/g, "");
    return made ? SPACE + made.replaceAll(" ", SPACE) : "";
  }

  split(text) {
    const parts = [];
    for (let at = 0; at < text.length;) {
      const part = this.whole.find((one) => text.startsWith(one, at)) ?? String.fromCodePoint(text.codePointAt(at));
      parts.push(part);
      at += part.length;
    }
    // The pair whose union has the best score is joined first, and of equal ones the leftmost.
    const score = (i) => {
      if (this.whole.includes(parts[i]) || this.whole.includes(parts[i + 1])) return -Infinity;
      const piece = this.pieces[this.ids.get(parts[i] + parts[i + 1])];
      return piece?.type === NORMAL ? piece.score : -Infinity;
    };
    const scores = parts.slice(1).map((_, i) => score(i));
    for (;;) {
      let best = -1;
      scores.forEach((one, i) => { if (one > (best < 0 ? -Infinity : scores[best])) best = i; });
      if (best < 0) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      scores.splice(best, 1);
      for (const i of [best - 1, best]) if (i >= 0 && i < scores.length) scores[i] = score(i);
    }
  }

  encode(text) {
    const ids = [], { unknown, end } = data.ids;
    for (const part of this.split(this.normalized(text))) {
      const id = this.ids.get(part) ?? unknown;
      const spelled = id === unknown ? [...utf8.encode(part)].map((byte) =>
        this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`)) : [id];
      if (!spelled.includes(undefined)) ids.push(...spelled);
      else if (ids[ids.length - 1] !== unknown) ids.push(unknown); // a run of them is one
    }
    return [...ids, end];
  }

  decode(ids) {
    const made = [];
    for (const id of ids) {
      const { text, type } = this.pieces[id];
      if (type === BYTE) made.push(parseInt(text.slice(1, -1), 16));
      else if (id === data.ids.unknown) made.push(...utf8.encode(" \u2047 "));
      else if (type !== CONTROL) made.push(...utf8.encode(text.replaceAll(SPACE, " ")));
    }
    return read(Uint8Array.from(made)).replace(/^ /, "");
  }
}

const PAUSE = 150; // milliseconds without a key, after which the text is translated
const state = { vocabulary: null, encoder: null, decoder: null, ort: null, turn: 0, found: null };

async function load() {
  const ort = state.ort = await import("./ort.wasm.bundle.min.mjs");
  ort.env.wasm.numThreads = 1;
  const whole = async (name) => (await fetch(name)).arrayBuffer();
  state.vocabulary = new Vocabulary(await whole("vocabulary.model"));
  for (const name of ["encoder", "decoder"]) {
    state[name] = await ort.InferenceSession.create(new Uint8Array(await whole(data[name])), { executionProviders: ["wasm"] });
  }
}

// The ids of a translation by greedy search, and the weights of each step; null if another text came meanwhile.
async function search(sources, turn) {
  const { Tensor } = state.ort, steps = [], found = [];
  const most = Math.min(sources.length + data.search.max_extra_length, data.longest_target);
  const memory = await state.encoder.run({ sources: new Tensor("int32", Int32Array.from(sources), [1, sources.length]) });
  let token = data.ids.begin;
  let cache = Object.fromEntries(Object.entries(data.cache).map(([name, shape]) =>
    [`past.${name}`, new Tensor("float32", new Float32Array(0), [1, ...shape])]));
  while (found.length < most) {
    if (turn !== state.turn) return null;
    const results = await state.decoder.run({ tokens: new Tensor("int32", Int32Array.of(token), [1]), ...memory, ...cache });
    token = results.logits.data.reduce((best, x, i, all) => (x > all[best] ? i : best), 0);
    cache = Object.fromEntries(Object.keys(data.cache).map((name) => [`past.${name}`, results[`present.${name}`]]));
    found.push(token);
    steps.push(results.cross_attention);
    if (token === data.ids.end) break;
  }
  return { sources, found, steps };
}

async function translated(text, turn) {
  const ids = state.vocabulary.encode(text);
  if (ids.length > data.longest_source) throw new Error(`the text has ${ids.length} subwords, and the model reads ${data.longest_source}`);
  return search(ids, turn);
}

function drawAttention() {
  if (!state.found) return;
  const { sources, found, steps } = state.found, text = (id) => shown(state.vocabulary.pieces[id].text);
  const [, , heads, length] = steps[0].dims, layer = Number($("layer").value), head = Number($("head").value);
  const row = (weights, h) => Array.from(weights.subarray((layer * heads + h) * length, (layer * heads + h + 1) * length));
  const chosen = head < heads ? [head] : [...Array(heads).keys()];
  const matrix = steps.map(({ data: weights }) => {
    const rows = chosen.map((h) => row(weights, h));
    return rows[0].map((_, k) => rows.reduce((sum, one) => sum + one[k], 0) / rows.length);
  });
  drawMap(found.map((id) => ({ text: text(id) })), sources.map((id) => ({ text: text(id) })), matrix);
}

function offerHeads() {
  const [, layers, heads] = state.found.steps[0].dims;
  if ($("layer").options.length) return;
  for (let i = 0; i < layers; i++) $("layer").append(element("option", { value: i }, `${i + 1}`));
  for (let i = 0; i < heads; i++) $("head").append(element("option", { value: i }, `${i + 1}`));
  $("head").append(element("option", { value: heads }, "mean of all"));
  $("layer").value = layers - 1;
  $("head").value = heads;
}

async function update() {
  const text = $("text").value, turn = ++state.turn, start = performance.now();
  if (!text.trim()) {
    $("translation").textContent = "";
    return;
  }
  const found = await translated(text, turn);
  if (!found) return;
  const seconds = (performance.now() - start) / 1000, count = found.found.length;
  state.found = found;
  $("translation").textContent = state.vocabulary.decode(found.found);
  $("status").textContent = `${count} subwords in ${seconds.toFixed(2)} s, ${Math.round(count / seconds)} a second`;
  offerHeads();
  drawAttention();
}

const tell = (error) => { $("status").textContent = `This does not work: ${error.message}`; };
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
$("languages").textContent = data.languages.map((code) => names.of(code)).join(" to ");
let waiting = 0;
$("text").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => update().catch(tell), PAUSE);
});
for (const id of ["layer", "head"]) $(id).addEventListener("change", drawAttention);
load().then(() => {
  $("text").disabled = false;
  $("text").focus();
  $("status").textContent = "The model is ready.";
}).catch(tell);
