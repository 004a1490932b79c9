// What a screen reader is told. A live region that changes with every request would never be silent:
// at most one text a second is told, and of those that come faster the last.

const PAUSE = 1000;
let waiting = null;
let timer = 0;

/** @param {string} text */
export function announce(text) {
  waiting = text;
  if (!timer) {
    tell();
  }
}

function tell() {
  timer = 0;
  if (waiting === null) {
    return;
  }
  document.getElementById("announcer").textContent = waiting;
  waiting = null;
  timer = setTimeout(tell, PAUSE);
}
