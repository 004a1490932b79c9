// Sends one request per press, and shows what the server said: nothing here counts tokens, but for
// the two dots, which fill again at the rate that the server announced.
"use strict";

const BURST = 2;
const REFILL_MS = 1000;
const ROWS = 8;

const at = (id) => document.getElementById(id);
const key = at("key");
const dots = document.querySelectorAll(".tokens i");
let refill = 0;

at("curl").textContent =
  `for i in 1 2 3; do curl -i -H 'X-Api-Key: bob' ${location.origin}/api/; done`;
showTokens(BURST);
key.addEventListener("input", () => showTokens(BURST));

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = key.value.trim();
  try {
    const answer = await fetch("/api/", {
      cache: "no-store",
      headers: name ? { "X-Api-Key": name } : {},
    });
    await answer.arrayBuffer();
    show(name, answer);
  } catch {
    say("shut", "No answer: is the server still running?");
  }
});

function show(name, answer) {
  const remaining = answer.headers.get("X-RateLimit-Remaining");
  const retry = answer.headers.get("Retry-After");
  if (answer.ok) {
    say("open", `${answer.status}: admitted, ${remaining} left in the bucket.`);
  } else if (answer.status === 429) {
    say("shut", `429: the bucket is empty. Come back in ${retry} s.`);
  } else {
    say("shut", `${answer.status}: not what this page expected.`);
  }
  showTokens(Number(remaining));

  const row = document.createElement("tr");
  const cells = [new Date().toLocaleTimeString(), name || "(address)", answer.status, remaining, retry];
  for (const text of cells) {
    row.insertCell().textContent = text ?? "–";
  }
  row.cells[2].className = answer.ok ? "yes" : "no";
  const log = at("log");
  log.querySelector(".empty")?.remove();
  log.prepend(row);
  while (log.rows.length > ROWS) {
    log.deleteRow(-1);
  }
}

function say(state, text) {
  at("gate").dataset.state = state;
  at("answer").textContent = text;
}

function showTokens(count) {
  clearTimeout(refill);
  dots.forEach((dot, index) => dot.classList.toggle("full", index < count));
  if (count < BURST) {
    refill = setTimeout(showTokens, REFILL_MS, count + 1);
  }
}
