// Renews live parts of the pages, and sends uploads. Everything else works without JavaScript.
"use strict";

const place = document.querySelector("[data-live]");
const parts = new Map();
let asking = false;

for (const part of document.querySelectorAll("[data-part]")) parts.set(part.id, part.innerHTML);

function isInUse(part) {
  const one = document.activeElement;
  if (part.contains(one) && one.matches("input, select, textarea")) return true;
  return [...part.querySelectorAll("input")].some((input) => input.type === "checkbox" ? input.checked : input.value !== input.defaultValue);
}

function renew(part, html) {
  const one = document.activeElement;
  const where = part.contains(one) ? [...part.querySelectorAll("a, button, summary, [tabindex]")].indexOf(one) : -1;
  const opened = [...part.querySelectorAll("details[open]")].map((details) => details.id);
  const scrolled = [...part.querySelectorAll(".sideways")].map((table) => table.scrollLeft);
  part.innerHTML = html;
  for (const id of opened) if (id && document.getElementById(id)) document.getElementById(id).open = true;
  part.querySelectorAll(".sideways").forEach((table, index) => { table.scrollLeft = scrolled[index] || 0; });
  if (where >= 0) part.querySelectorAll("a, button, summary, [tabindex]")[where]?.focus({preventScroll: true});
}

async function look() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch(location.pathname, {headers: {Accept: "text/html"}, cache: "no-store"});
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const [id, before] of parts) {
      const part = document.getElementById(id), html = fresh.getElementById(id)?.innerHTML;
      if (html === undefined || html === before || isInUse(part)) continue;
      parts.set(id, html);
      renew(part, html);
    }
  } catch {
    // the service does not answer now: the timer tries again
  } finally {
    asking = false;
  }
}

if (place) {
  setInterval(look, 1000 * Number(place.dataset.live));
  document.addEventListener("visibilitychange", look);
  if (place.dataset.events && place.dataset.over === "no") {
    const source = new EventSource(place.dataset.events);
    source.addEventListener("status", look);
    source.addEventListener("end", () => { source.close(); setTimeout(look, 1000); });
  }
}

const upload = document.getElementById("upload");
upload?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = document.getElementById("chosen").files[0], status = document.getElementById("upload-status");
  if (!file) return;
  status.textContent = `${file.name} is being uploaded.`;
  try {
    const answer = await fetch(`/api/v1/uploads?name=${encodeURIComponent(file.name)}`, {
      method: "POST", body: file, headers: {"Content-Type": "application/octet-stream"},
    });
    const told = await answer.json();
    if (answer.ok) location.assign(upload.dataset.after + encodeURIComponent(told.name));
    else status.textContent = told.detail;
  } catch {
    status.textContent = "The upload was cut off: the file may be too large, or the service may be away. Try again.";
  }
});
