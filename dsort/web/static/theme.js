"use strict";

// Sets the reader's choice of light or dark before anything is drawn. Modules would run too late.
{
  const chosen = localStorage.getItem("dsort-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
