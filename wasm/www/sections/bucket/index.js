export function mount(host) {
  host.textContent = "…";
}
