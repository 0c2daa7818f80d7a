"use strict";
// Only comfort: without this script the page shows everything.

const form = document.getElementById("filter");
const cells = [...document.querySelectorAll("details[data-standing]")];
const marked = [...document.querySelectorAll("li[data-standing], tr[data-standing]")];

function show(wanted) {
  const hide = (node, away) => node.toggleAttribute("data-hidden", away);
  for (const node of [...cells, ...marked]) hide(node, wanted !== "all" && node.dataset.standing !== wanted);
  const empty = (node, inside) => ![...node.querySelectorAll(inside)].some((one) => !one.hasAttribute("data-hidden"));
  for (const row of document.querySelectorAll(".matrix tr:has(li)")) hide(row, empty(row, "li"));
  for (const body of document.querySelectorAll(".matrix tbody")) hide(body, empty(body, "tr:not(.group)"));
  for (const part of new Set(cells.map((cell) => cell.closest("section")))) hide(part, empty(part, "details"));
  const left = cells.filter((cell) => !cell.hasAttribute("data-hidden")).length;
  document.getElementById("shown").textContent = wanted === "all" ? "" : `${left} of ${cells.length} cells`;
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}

for (const command of document.querySelectorAll("code.command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "copy";
  button.setAttribute("aria-label", `copy ${command.textContent}`);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected";
    }
  });
  command.after(button);
}

form.hidden = false;
form.addEventListener("change", () => show(new FormData(form).get("standing")));
addEventListener("hashchange", openTarget);
openTarget();
