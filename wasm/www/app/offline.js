// After the first visit the page needs no server: a service worker keeps its files (sw.js).

/** @param {HTMLElement} place where it is told */
export async function keepOffline(place) {
  if (!("serviceWorker" in navigator) || !isSecureContext) {
    return; // plain http from another machine: works, but not offline
  }
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    place.textContent = "Kept in this browser: the page opens without a network.";
  } catch {
    place.textContent = ""; // storage is forbidden here; the page works as long as there is a network
  }
}
