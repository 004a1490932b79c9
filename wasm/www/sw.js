// Keeps the files of one version of the page, and answers with them. The version and the list are put
// in at build time; another version is another cache, filled whole before the old one goes.
//
// What a gateway says for itself is never answered from here: it goes to the network.

const VERSION = "@VERSION@";
const FILES = [/* @FILES@ */];
const CACHE = `tollgate-lab-${VERSION}`;
const here = new URL("./", self.location);
const kept = new Set(FILES.map((file) => new URL(file, here).pathname));

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE)
    .then((cache) => cache.addAll(FILES.map((file) => new Request(new URL(file, here), { cache: "no-cache" }))))
    .then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    const names = await caches.keys();
    await Promise.all(names.filter((name) => name.startsWith("tollgate-lab-") && name !== CACHE).map((name) => caches.delete(name)));
    await self.clients.claim();
  })());
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== here.origin) {
    return;
  }
  const path = url.pathname === here.pathname ? new URL("index.html", here).pathname : url.pathname;
  if (path === new URL("lab.json", here).pathname) {
    event.respondWith(fetch(event.request).catch(() => caches.match(path)));
  } else if (kept.has(path)) {
    event.respondWith(caches.match(path, { cacheName: CACHE }).then((file) => file ?? fetch(event.request)));
  }
});
