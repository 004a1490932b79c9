// The shell: it reads the address, opens the section that it names, and closes the one before. What a
// section may ask of the page is the object `page` below.

import { h } from "../sections/common/parts.js";
import { announce } from "./announce.js";
import { showMore } from "./tabs.js";
import { followTheme } from "./theme.js";
import { keepOffline } from "./offline.js";
import { Reading } from "./reading.js";
import { read, throttledReplace, write } from "./route.js";
import { SECTIONS } from "./sections.js";

const content = document.getElementById("content");
const tabs = new Map();
let open = null; // { id, hash, abort, ended, hasSaved: its state is in the address }
const address = throttledReplace(() => open?.hash, (hash) => {
  open.hash = hash;
  tabs.get(open.id).href = hash; // a tab leads back to where one was
});

function makeTabs() {
  document.getElementById("tabs").append(...SECTIONS.map(({ id, tab }) => {
    const link = h("a", { href: write(id) }, tab);
    tabs.set(id, link);
    return h("li", {}, link);
  }));
}

async function show(isFirst) {
  const asked = read();
  const section = SECTIONS.find(({ id }) => id === asked.id) ?? SECTIONS[0];
  const { id } = section;
  const isKnown = asked.id === id || asked.id === "";
  const reading = new Reading(isKnown ? asked.state : {});
  const isOther = open?.id !== id;
  close();
  const abort = new AbortController();
  const mine = { id, hash: location.hash, abort, ended: null, hasSaved: false };
  open = mine;
  tabs.get(id).href = write(id, reading.state);
  tabs.get(id).removeAttribute("data-news");
  tabs.get(id).removeAttribute("title");
  for (const [other, link] of tabs) {
    link.toggleAttribute("data-open", other === id);
    if (other === id) {
      link.setAttribute("aria-current", "page");
      // Within its own row: scrollIntoView would move the page as well.
      const row = link.closest("nav");
      row.scrollLeft = link.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
    } else {
      link.removeAttribute("aria-current");
    }
  }
  document.title = `${section.title} · Tollgate lab`;
  const heading = h("h1", { id: "section-title", tabindex: "-1" }, section.title);
  const host = h("div", { class: "host", "data-section": id, "aria-busy": "true" });
  content.replaceChildren(h("article", { "aria-labelledby": "section-title", "data-id": id },
    heading, h("p", { class: "lead" }, section.lead), host));
  if (!isFirst && isOther) {
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  const page = {
    reading,
    setState(next) {
      if (open === mine) {
        mine.hasSaved = true;
        address.replace(write(id, next));
      }
    },
    announce: (text) => open === mine && announce(text),
    signal: abort.signal,
    onTheme: (callback) => document.addEventListener("lab:theme", callback, { signal: abort.signal }),
  };
  try {
    const { mount } = await section.load();
    if (open !== mine) {
      return;
    }
    const cleanup = await mount(host, page);
    if (open !== mine) {
      cleanup?.();
      return;
    }
    mine.ended = cleanup;
    host.removeAttribute("aria-busy");
    tellMisread(isKnown ? null : asked.id, section, reading, host);
  } catch (error) {
    if (open === mine) {
      console.error(error);
      host.removeAttribute("aria-busy");
      host.replaceChildren(h("div", { class: "told", "data-state": "wrong", role: "alert" },
        h("p", {}, `This section did not open: ${error.message}`),
        h("button", { type: "button", onclick: () => location.reload() }, "Load the page again")));
    }
  }
}

/** Says once what of the address was not understood, and takes it out of it. */
function tellMisread(unknown, { id, title }, reading, host) {
  const wrong = reading.wrong();
  if (unknown === null && wrong.length === 0) {
    return;
  }
  const told = unknown === null
    ? `Of the address this was not understood: ${wrong.join("; ")}. All else of it is in force, and the address is corrected.`
    : `The address names a section that is not here, “${unknown.slice(0, 24)}”: this is ${title}.`;
  if (!open.hasSaved) { // a section that has put its own state has left out the same
    address.replace(write(id, reading.state));
  }
  const note = h("div", { class: "told misread" }, h("p", {}, told),
    h("button", { type: "button", onclick: () => { note.remove(); content.focus({ preventScroll: true }); } }, "Close this note"));
  host.before(note);
  announce(told);
}

function close() {
  if (open) {
    address.forget();
    open.abort.abort();
    open.ended?.();
    open = null;
  }
}

makeTabs();
showMore(document.getElementById("tabs").parentElement);
followTheme(document.getElementById("theme"));
document.querySelector("a.skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part behind the # names a section
  content.focus();
});
addEventListener("hashchange", () => {
  if (location.hash !== open?.hash) {
    show(false);
  }
});
// A state that waits for its turn must be in the address when it is copied or left.
addEventListener("pagehide", () => address.flush());
// What a section has done behind one's back is told wherever one is, and its tab is marked until it is opened.
document.addEventListener("lab:news", ({ detail: { id, text } }) => {
  if (open?.id !== id) {
    tabs.get(id).dataset.news = text;
    tabs.get(id).title = text;
    announce(text);
  }
});
document.addEventListener("lab:share", () => address.flush());
// The section first: the service worker fetches all there is.
show(true).then(() => keepOffline(document.getElementById("offline")));
