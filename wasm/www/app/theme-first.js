// Before the first paint, hence no module: the theme that was chosen here, or the system's.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("tollgate-lab-theme");
  } catch {
    // no storage here: the system's
  }
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}
