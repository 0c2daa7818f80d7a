"use strict";
// Without this script the page shows the log as it was found; with it, how it came about.

const told = JSON.parse(document.getElementById("told").textContent);
const form = document.getElementById("time");
const slider = form.elements.moment;
const pieces = [...document.querySelectorAll("[data-t]")].map((node) => [node, ...node.dataset.t.split(" ").map(Number)]);
const steps = [...document.querySelectorAll("tr[data-ms]")];
const last = told.moments.length - 1;
const number = new Intl.NumberFormat("en");

function place(name, at, offset, text) {
  const node = document.getElementById(`${name}-${at}`);
  if (!node) return;
  node.setAttribute("visibility", offset === null ? "hidden" : "visible");
  if (offset === null) return;
  const { start, until, unit } = told.strips[at];
  const x = told.left + unit * (Math.min(Math.max(offset, start), until) - start);
  node.setAttribute("transform", `translate(${x.toFixed(1)})`);
  node.querySelector("text").textContent = `${text} ${number.format(offset)}`;
}

function show(moment) {
  for (const [node, written, ended] of pieces) {
    const state = moment < written ? "none" : moment < ended ? "open" : "";
    if ((node.dataset.s || "") !== state) state ? (node.dataset.s = state) : delete node.dataset.s;
  }
  told.strips.forEach((strip, at) => {
    const [stable, end, group] = strip.bounds[moment];
    place("lso", at, stable, "LSO");
    place("hw", at, end, "HW");
    place("group", at, group, "group");
  });
  const now = told.moments[moment];
  let latest = null;
  for (const row of steps) {
    const later = Number(row.dataset.ms) > now;
    row.classList.toggle("later", later);
    if (!later) latest = row;
  }
  slider.value = moment;
  slider.setAttribute("aria-valuetext", told.labels[moment]);
  document.getElementById("when").textContent = `${told.labels[moment]}, ${moment + 1} of ${last + 1}`;
  document.getElementById("step").textContent = latest ? latest.dataset.told : "";
  document.body.dataset.moment = moment;
}

function go(moment) {
  history.replaceState(null, "", moment === last ? "#" : `#t=${moment}`);
  show(moment);
}

function fromAddress() {
  const found = /^#t=(\d+)$/.exec(location.hash);
  show(found ? Math.min(last, Number(found[1])) : last);
}

let playing = null;
function play() {
  const button = form.elements.play;
  if (playing !== null) {
    clearInterval(playing);
    playing = null;
    button.textContent = "play";
    return;
  }
  button.textContent = "stop";
  if (Number(slider.value) === last) go(0);
  playing = setInterval(() => (Number(slider.value) < last ? go(Number(slider.value) + 1) : play()), 10000 / (last + 1) + 60);
}

for (const happening of ["pointerover", "click"]) {
  document.querySelector(".xray").addEventListener(happening, (event) => {
    const title = event.target.closest("g:has(> title)")?.querySelector("title");
    if (title) document.getElementById("readout").textContent = title.textContent;
  });
}
if (last >= 0) {
  form.hidden = last === 0;
  slider.max = last;
  slider.addEventListener("input", () => go(Number(slider.value)));
  form.elements.play.addEventListener("click", play);
  addEventListener("hashchange", fromAddress);
  fromAddress();
}
