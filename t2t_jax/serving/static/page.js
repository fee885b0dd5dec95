"use strict";

// The page that translates. docs.html uses what stands before "The page itself" too.

const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// What the browser remembers, where it may: a value is read, or written if one is given.
function remembered(storage, name, value) {
  try {
    if (value === undefined) return window[storage].getItem(name);
    window[storage].setItem(name, value);
  } catch {
    // Cookies are refused, or the storage is full: then nothing is remembered.
  }
  return null;
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : prefersDark.matches;
}

// Before the body is read, so that the page does not flash in the other theme.
const theme = remembered("localStorage", "theme");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;

function startTheme() {
  const show = () => $("theme").setAttribute("aria-pressed", isDark());
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remembered("localStorage", "theme", document.documentElement.dataset.theme);
    show();
  });
  prefersDark.addEventListener("change", show);
  show();
}

// A refusal of the server, or status 0 where it does not answer.
class Refusal extends Error {}
const refusal = (status, message, retryAfter) => Object.assign(new Refusal(message), { status, retryAfter });

async function ask(path, fields, signal) {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) };
  let answer;
  try {
    answer = await fetch(path, { signal, ...(fields && sent) });
  } catch {
    throw refusal(0, "The server cannot be reached. Your text is kept; check the connection, then try again.");
  }
  const found = await answer.json().catch(() => null);
  if (answer.ok && found) return found;
  const message = found?.error ?? "the answer of the server cannot be read";
  throw refusal(answer.status, message, parseFloat(answer.headers.get("Retry-After")));
}

async function copy(box, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(box.textContent);
  } catch {
    // Over plain HTTP there is no clipboard: copy what is selected, which stays so if that fails too.
    getSelection().selectAllChildren(box);
    isDone = document.execCommand("copy");
  }
  const label = button.dataset.label ??= button.textContent;
  button.textContent = isDone ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = label; }, 2000);
}

// The page itself.

const PAUSE = 400; // milliseconds without a key, after which the text is translated
const HINT = "Point at a word, or move to it with the arrow keys, to see the word that it attends to.";
const state = {
  pairs: [], // of languages: [source, target]
  names: new Map(), // of languages, by their codes
  limit: null, // characters of a request, if the server says
  learned: null, // the promise that this is known
  needsKey: false,
  timer: 0, // of the next request
  asked: null, // the controller of the request that is under way
  hasFailed: false,
  best: "", // the translation that is shown
  links: [], // for each sentence, pairs [source word, target word]
  words: { source: [], target: [] }, // for each sentence, the elements of its words
  marked: [], // elements that are highlighted
};

function nameOf(code) {
  const name = state.names.get(code);
  if (name && name !== code) return name;
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code.replaceAll("_", "-"));
  } catch {
    return code; // no code of a language
  }
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

const unique = (items) => [...new Set(items)];

function fillTargets() {
  const source = $("source").value;
  const targets = unique(state.pairs.filter(([from]) => source === "auto" || from === source).map(([, to]) => to));
  fill($("target"), targets.map((code) => [code, nameOf(code)]), $("target").value);
  showPair();
}

function showPair() {
  const source = $("source").value, target = $("target").value;
  $("swap").hidden = !state.pairs.some(([from, to]) => from === target && to === source);
  $("detected").textContent = "";
  $("text").lang = source === "auto" ? "" : source; // empty is unknown, and not that of the page
}

function swap() {
  const [source, target] = [$("source").value, $("target").value];
  if (state.best) $("text").value = state.best;
  $("source").value = target;
  fillTargets();
  $("target").value = source;
  showPair();
  start();
}

function say(text, { wrong = false, again = false } = {}) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
  $("again").hidden = !again;
}

function setBusy(isBusy) {
  $("result").setAttribute("aria-busy", isBusy);
  if (isBusy) say("Translating…");
}

// The text has changed: what is under way is given up, and the words are no longer those translated.
function edited() {
  clearTimeout(state.timer);
  state.asked?.abort();
  const text = $("text").value;
  showCount(text);
  forgetLinks();
  $("behind").textContent = `${text}\u200b`; // for the height of a last line that is empty
  if (!text.trim()) return empty();
  setBusy(true);
  state.timer = setTimeout(translate, PAUSE);
}

function showCount(text) {
  const count = [...text].length, shown = (number) => number.toLocaleString("en");
  const whole = state.limit ? `${shown(count)} of ${shown(state.limit)}` : shown(count);
  $("count").textContent = `${whole} ${whole === "1" ? "character" : "characters"}`;
  $("count").classList.toggle("over", state.limit !== null && count > state.limit);
  $("clear").hidden = !text;
}

function empty() {
  Object.assign(state, { best: "", hasFailed: false });
  for (const id of ["output", "sureness", "detected"]) $(id).textContent = "";
  $("copy").hidden = $("others").hidden = $("linked").hidden = true;
  setBusy(false);
  say("");
}

async function translate() {
  clearTimeout(state.timer);
  state.asked?.abort();
  const asked = state.asked = new AbortController();
  state.hasFailed = false;
  try {
    await (state.learned ??= learn());
    const text = $("text").value, wanted = request(text);
    if (asked.signal.aborted) return;
    if (!text.trim()) return empty();
    if (state.needsKey && !wanted.api_key) {
      setBusy(false);
      return say("Enter an API key of this server, and the text is translated.");
    }
    setBusy(true);
    const answer = await ask("v1/translations", wanted, asked.signal);
    if (asked.signal.aborted) return; // a newer request has taken its place
    setBusy(false);
    show(answer, text);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (!asked.signal.aborted) showRefusal(error);
  }
}

function request(text) {
  const fields = { q: text, source: $("source").value, target: $("target").value, alignments: true };
  fields.num_best = Number($("number").value);
  if ($("key").value) fields.api_key = $("key").value;
  return fields;
}

function showRefusal({ status, message, retryAfter }) {
  setBusy(false);
  state.hasFailed = true;
  const said = status ? `Not translated: ${message} (status ${status}).` : message;
  if (status === 401 || status === 403) showKey(true);
  if (retryAfter >= 0) {
    const seconds = retryAfter === 1 ? "1 second" : `${retryAfter} seconds`;
    state.timer = setTimeout(translate, 1000 * retryAfter);
    return say(`${said} Trying again in ${seconds}.`, { wrong: true });
  }
  say(said, { wrong: true, again: true });
}

function showKey(isWrong) {
  state.needsKey = true;
  $("access").hidden = false;
  $("key").setAttribute("aria-invalid", isWrong);
}

const percent = (share) => `${Math.round(100 * share)}%`;
const scores = ({ confidence, score }) => `Confidence ${percent(confidence)}, score ${score.toFixed(2).replace("-", "−")}`;

function show(answer, text) {
  const [{ hypotheses, sentences }] = answer.translations;
  const best = state.best = hypotheses[0].text;
  $("text").lang = answer.source;
  $("output").lang = answer.target;
  $("detected").textContent = $("source").value === "auto" ? `Detected: ${nameOf(answer.source)}` : "";
  state.words.source = drawWords($("behind"), text, sentences.map((one) => one.source));
  $("behind").append("\u200b");
  state.words.target = drawWords($("output"), best, sentences.map((one) => one.hypotheses[0].text));
  const { source, target } = state.words;
  state.links = sentences.map(({ alignment = [] }, i) => (fits(alignment, source[i], target[i]) ? alignment : []));
  const linked = reachable();
  for (const word of linked) {
    word.classList.add("link");
    word.tabIndex = -1;
  }
  if (linked.length) linked[0].tabIndex = 0;
  $("linked").hidden = !linked.length;
  highlight(null);
  $("sureness").textContent = scores(hypotheses[0]);
  $("copy").hidden = !best;
  showAlternatives(hypotheses, answer.target);
  const parts = sentences.length === 1 ? "" : `, ${sentences.length} sentences`;
  say(`Translated to ${nameOf(answer.target)}${parts}.`);
  $("key").removeAttribute("aria-invalid");
}

// Write a text into a box with an element for each word of its sentences: words are what spaces separate.
function drawWords(box, text, sentences) {
  const pieces = [];
  let end = 0;
  const words = sentences.map((sentence) => {
    const start = text.indexOf(sentence, end);
    if (start < 0) return [];
    return [...sentence.matchAll(/\S+/g)].map((match) => {
      const word = element("span", { class: "word" }, match[0]);
      pieces.push(text.slice(end, start + match.index), word);
      end = start + match.index + match[0].length;
      return word;
    });
  });
  box.replaceChildren(...pieces, text.slice(end));
  words.flat().forEach((word, place) => { word.dataset.place = place; });
  return words;
}

// The server links every word of a translation. Where it counts other words than this page does, links are left out.
function fits(links, source, target) {
  return links.length === target.length && links.every(([from, to]) => source[from] && target[to]);
}

const reachable = () => state.words.target.filter((_, sentence) => state.links[sentence].length).flat();

function forgetLinks() {
  state.links = [];
  for (const word of $("output").querySelectorAll(".word")) {
    word.classList.remove("link");
    word.removeAttribute("tabindex");
  }
  state.words = { source: [], target: [] };
  highlight(null);
}

// Mark a word of a side, and those of the other side that it is linked to.
function highlight(word) {
  for (const one of state.marked) one.classList.remove("chosen", "linked");
  state.marked = [];
  const side = word && ($("output").contains(word) ? "target" : "source");
  const sentence = word ? state.words[side].findIndex((words) => words.includes(word)) : -1;
  if (sentence < 0 || !state.links[sentence].length) return tell(HINT);
  const { source, target } = state.words, own = Number(side === "target");
  const number = state.words[side][sentence].indexOf(word);
  const others = unique(state.links[sentence].filter((link) => link[own] === number).map((link) => link[1 - own]));
  const linked = others.map((other) => (own ? source : target)[sentence][other]);
  word.classList.add("chosen");
  for (const one of linked) one.classList.add("linked");
  state.marked = [word, ...linked];
  const quoted = (one) => `“${one.textContent}”`;
  if (own) tell(`${quoted(word)} attends to ${linked.map(quoted).join(" and ")}`);
  else tell(linked.length ? `${quoted(word)} is attended to by ${linked.map(quoted).join(" and ")}`
    : `No word of the translation attends most to ${quoted(word)}`);
}

function tell(text) {
  if ($("linked").textContent !== text) $("linked").textContent = text;
}

// What is pointed at is highlighted; where nothing is, the word that has the focus.
function startHighlights() {
  const output = $("output"), text = $("text");
  output.addEventListener("pointerover", (event) => highlight(event.target.closest(".word") ?? document.activeElement));
  output.addEventListener("pointerleave", () => highlight(document.activeElement));
  output.addEventListener("focusin", (event) => {
    for (const word of output.querySelectorAll("[tabindex='0']")) word.tabIndex = -1;
    event.target.tabIndex = 0;
    highlight(event.target);
  });
  output.addEventListener("focusout", () => highlight(null));
  output.addEventListener("keydown", moveFocus);
  // The words of the source lie behind the text area, which the pointer is on.
  text.addEventListener("pointermove", ({ clientX, clientY }) => {
    const below = document.elementsFromPoint(clientX, clientY);
    highlight(below.find((one) => one.classList.contains("word")));
  });
  text.addEventListener("pointerleave", () => highlight(document.activeElement));
  text.addEventListener("blur", () => highlight(document.activeElement));
  for (const name of ["click", "keyup"]) text.addEventListener(name, () => highlight(wordAt(text.selectionStart)));
}

function moveFocus(event) {
  const words = reachable(), at = words.indexOf(document.activeElement);
  const isLeftward = getComputedStyle(event.target).direction === "rtl";
  const steps = { ArrowRight: isLeftward ? -1 : 1, ArrowLeft: isLeftward ? 1 : -1, ArrowDown: 1, ArrowUp: -1 };
  const places = { Home: 0, End: words.length - 1 };
  const next = words[event.key in steps ? at + steps[event.key] : places[event.key]];
  if (event.key in steps || event.key in places) event.preventDefault();
  next?.focus();
}

// The word of the source at a place of its text.
function wordAt(place) {
  let end = 0;
  for (const node of $("behind").childNodes) {
    end += node.textContent.length;
    if (place < end || (place === end && node.nodeType === Node.ELEMENT_NODE)) {
      return node.nodeType === Node.ELEMENT_NODE ? node : null;
    }
  }
  return null;
}

function showAlternatives(hypotheses, language) {
  const [best, ...others] = hypotheses;
  $("alternatives").replaceChildren(...others.map((one) => {
    const text = element("div", { class: "other", dir: "auto", lang: language }, ...differing(one.text, best.text));
    return element("li", {}, text, element("span", { class: "scores" }, scores(one)));
  }));
  $("others").hidden = $("number").options.length < 2;
  $("difference").hidden = !others.length;
}

// A text, with an element around what differs from another: all but the words that both begin or end with.
function differing(text, other) {
  const mine = text.split(/(?<=\s)/), theirs = other.split(/(?<=\s)/), most = Math.min(mine.length, theirs.length);
  let before = 0, after = 0;
  while (before < most && mine[before] === theirs[before]) before++;
  while (after < most - before && mine.at(-1 - after) === theirs.at(-1 - after)) after++;
  const end = mine.length - after;
  const [, middle, space] = mine.slice(before, end).join("").match(/^(.*?)(\s*)$/s);
  const differs = element("span", { class: "differs" }, middle);
  return [mine.slice(0, before).join(""), differs, space + mine.slice(end).join("")];
}

// Learn from the server what it offers.
async function learn() {
  try {
    const [languages, described] = await Promise.all([ask("languages"), ask("openapi.json")]);
    const post = described.paths["/v1/translations"].post;
    showOffer(languages, post.requestBody.content["application/json"].schema.properties);
  } catch (error) {
    state.learned = null; // it is asked again
    throw error;
  }
}

function showOffer(languages, fields) {
  state.names = new Map(languages.map(({ code, name }) => [code, name]));
  state.pairs = languages.flatMap(({ code, targets }) => targets.map((target) => [code, target]));
  state.limit = fields.q.maxLength ?? fields.q.oneOf?.[0].maxLength ?? null;
  showCount($("text").value);
  const numbers = Array.from({ length: fields.num_best.maximum }, (_, i) => String(i + 1));
  fill($("number"), numbers.map((number) => [number, number]), numbers[Math.min(3, numbers.length) - 1]);
  if (fields.api_key) showKey(false);
  const sources = [...state.names];
  fill($("source"), sources.length > 1 ? [["auto", "Detect language"], ...sources] : sources, sources[0][0]);
  fillTargets();
}

// Translate at once what is written now.
function start() {
  edited();
  translate();
}

function listen() {
  $("text").addEventListener("input", edited);
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  });
  $("key").value = remembered("sessionStorage", "key") ?? "";
  $("key").addEventListener("input", () => {
    remembered("sessionStorage", "key", $("key").value);
    edited();
  });
  $("access").addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  $("source").addEventListener("change", () => { fillTargets(); start(); });
  $("target").addEventListener("change", () => { showPair(); start(); });
  $("number").addEventListener("change", start);
  $("swap").addEventListener("click", swap);
  $("again").addEventListener("click", start);
  $("copy").addEventListener("click", () => copy($("output"), $("copy")));
  $("clear").addEventListener("click", () => {
    $("text").value = "";
    edited();
    $("text").focus();
  });
  addEventListener("online", () => { if (state.hasFailed) start(); });
}

document.addEventListener("DOMContentLoaded", () => {
  startTheme();
  if (!$("text")) return;
  startHighlights();
  listen();
  start();
});
