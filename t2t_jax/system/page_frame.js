"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function withAttributes(made, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const element = (name, attributes = {}, text = "") => withAttributes(document.createElement(name), attributes, text);
const drawn = (name, attributes = {}, text = "") =>
  withAttributes(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, text);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
