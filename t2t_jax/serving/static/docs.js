"use strict";

// The page about the API, made from /openapi.json. What it shares with the other page is in page.js.

const code = (text) => element("code", {}, text);

// Items with something between any two.
function joined(items, between) {
  return items.flatMap((item, place) => (place ? [between, item] : [item]));
}

// What a schema allows, in words; of several such values where it is that of the items of a list.
function kindOf(schema, isPlural = false) {
  if (schema.oneOf) return joined(schema.oneOf.map((one) => kindOf(one, isPlural)), " or ").flat();
  if (schema.enum) {
    return [schema.enum.length > 1 ? "one of " : "only ", ...joined(schema.enum.map((one) => code(String(one))), ", ")];
  }
  const names = { integer: "whole number", boolean: "true or false", array: "list" };
  const name = `${names[schema.type] ?? schema.type}${isPlural ? "s" : ""}`;
  if (schema.items) return [`${name} of `, ...kindOf(schema.items, true)];
  const { minimum: low, maximum: high } = schema;
  return [low === undefined ? name : `${name} from ${grouped(low)} to ${grouped(high)}`];
}

const grouped = (number) => number.toLocaleString("en");

// A text in which what stands between backquotes is code.
function prose(text) {
  return element("p", {}, ...text.split("`").map((part, place) => (place % 2 ? code(part) : part)));
}

// The fields of an object; those of objects within it are a list within the list.
function fieldList({ properties, required = [] }) {
  const list = element("dl");
  for (const [name, schema] of Object.entries(properties)) {
    const kind = element("span", { class: "kind" }, ...kindOf(schema)), inside = schema.items ?? schema;
    if (required.includes(name)) kind.append("; required");
    if (schema.default !== undefined) kind.append("; by default ", code(String(schema.default)));
    const longest = schema.maxLength ?? schema.oneOf?.[0].maxLength;
    if (longest) kind.append(`; at most ${grouped(longest)} characters`);
    const row = element("dd", {}, kind);
    if (schema.description) row.append(prose(schema.description));
    if (inside.properties) row.append(fieldList(inside));
    list.append(element("dt", {}, code(name)), row);
  }
  return list;
}

function statusList(responses) {
  const list = element("dl");
  for (const [status, { description }] of Object.entries(responses)) {
    list.append(element("dt", {}, code(status)), element("dd", {}, prose(description)));
  }
  return list;
}

// A request as JSON, with a space after each comma.
function exampleBody(fields, pair) {
  const given = {
    q: "Open the file.",
    ...pair,
    num_best: Math.min(2, fields.num_best?.maximum ?? 1),
    alignments: true,
    api_key: "KEY",
  };
  const taken = Object.entries(given).filter(([name]) => name in fields);
  return `{${taken.map((pair) => pair.map((one) => JSON.stringify(one)).join(": ")).join(", ")}}`;
}

// What curl sends to a route, behind its address.
function exampleOptions(fields, pair) {
  if (!fields) return "";
  const { source, target } = pair;
  if (fields.file) return ` \\\n  -F source=${source} -F target=${target} -F file=@manual.docx`;
  return ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${exampleBody(fields, pair)}'`;
}

function example(path, fields, pair) {
  const address = new URL(`.${path.replace("{name}", "NAME")}`, location.href);
  const text = `curl ${address}${exampleOptions(fields, pair)}`;
  const shown = element("pre", { tabindex: 0, "aria-label": "Example" }, text);
  const button = element("button", { type: "button", "aria-live": "polite" }, "Copy");
  button.addEventListener("click", () => copy(shown, button));
  return element("div", { class: "example" }, shown, button);
}

function routeSection(path, method, route, pair) {
  const id = `${method}${path.replaceAll("/", "-")}`;
  const name = element("span", { class: "method" }, method.toUpperCase());
  const section = element("section", { class: "route", id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, name, " ", path), prose(route.summary));
  const add = (title, ...shown) => section.append(element("h3", {}, title), ...shown);
  const kinds = Object.keys(route.requestBody?.content ?? {});
  const body = route.requestBody?.content[kinds[0]].schema;
  if (body) {
    const types = element("p", { class: "kind" }, "Sent as ", ...joined(kinds.map((kind) => code(kind)), " or "), ".");
    add("Fields", types, fieldList(body));
  }
  const answer = route.responses["200"].content?.["application/json"]?.schema;
  const several = answer?.items ? [element("p", { class: "kind" }, "A list; each of its items has")] : [];
  if (answer) add("Answer", ...several, fieldList(answer.items ?? answer));
  add("Statuses", statusList(route.responses));
  add("Example", example(path, body?.properties, pair));
  const link = element("li", {}, element("a", { href: `#${id}` }, `${method.toUpperCase()} ${path}`));
  return { section, link };
}

function showDescription({ info, paths }, [{ code: source, targets }]) {
  $("about").textContent = `${info.description} Version ${info.version} of t2t_jax.`;
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const { section, link } = routeSection(path, method, route, { source, target: targets[0] });
      $("routes").append(section);
      $("contents").append(link);
    }
  }
  $("status").hidden = true;
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

document.addEventListener("DOMContentLoaded", async () => {
  try {
    showDescription(...await Promise.all([ask("openapi.json"), ask("languages")]));
  } catch (error) {
    $("status").classList.add("wrong");
    $("status").textContent = error.message;
    if (!(error instanceof Refusal)) throw error;
  }
});
