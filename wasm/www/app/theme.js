// Light or dark: as the system has it, until somebody chooses; the choice is kept in this browser.

const KEY = "tollgate-lab-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const chosen = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // no storage here
  }
};

/** @param {HTMLButtonElement} button chooses the other one */
export function followTheme(button) {
  const show = () => {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    const other = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Use the ${other} colours`);
    document.dispatchEvent(new CustomEvent("lab:theme"));
  };
  button.addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, other);
    } catch {
      document.documentElement.dataset.theme = other;
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}
