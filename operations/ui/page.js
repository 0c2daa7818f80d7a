"use strict";
// Without this script the page shows one moment. With it, what changed is put in place; the server has escaped it.

const body = document.body;
const flow = document.getElementById("flow");
const pause = document.getElementById("pause");
const QUIET_MS = 5000;
const AGAIN_MS = 2000;

let at = body.dataset.at;
let stream = null;
let heard = performance.now();
let held = null;

function put(parts) {
  for (const [name, markup] of Object.entries(parts)) {
    const node = document.getElementById(name);
    if (node) node.outerHTML = markup;
  }
}

function link(state) {
  if (body.dataset.link !== state) body.dataset.link = state;
}

function change(event) {
  heard = performance.now();
  at = event.lastEventId;
  const parts = JSON.parse(event.data);
  if (held) Object.assign(held, parts);
  else put(parts);
  link("open");
}

function close() {
  if (stream) stream.close();
  stream = null;
}

function open() {
  close();
  heard = performance.now();
  stream = new EventSource(`events?since=${encodeURIComponent(at)}`);
  stream.addEventListener("change", change);
  stream.addEventListener("beat", () => { heard = performance.now(); link("open"); });
  stream.addEventListener("reload", () => { close(); location.reload(); });
  stream.addEventListener("error", () => {
    if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(() => stream || document.hidden || open(), AGAIN_MS); }
  });
}

setInterval(() => { if (!document.hidden && performance.now() - heard > QUIET_MS) link("lost"); }, 1000);

// A browser opens few streams to one server; tabs that nobody sees give theirs back.
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));

pause.hidden = false;
pause.addEventListener("click", () => {
  if (held) { put(held); held = null; } else held = {};
  pause.textContent = held ? "resume" : "pause";
  body.classList.toggle("held", held !== null);
});

const chips = document.getElementById("chips");
chips.hidden = false;
chips.addEventListener("click", (event) => {
  const only = event.target.dataset.only;
  if (!only) return;
  flow.dataset.only = only;
  for (const one of chips.children) one.setAttribute("aria-pressed", String(one === event.target));
});

open();
