// Dark or light, before anything is painted: what was chosen here last, else what the system says.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("rowferry.theme");
  } catch {
    // Storage may be forbidden; then the system decides.
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
