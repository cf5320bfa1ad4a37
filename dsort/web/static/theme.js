"use strict";

// Before anything is drawn: light or dark, if the reader has chosen. The rest of the page is modules.
{
  const chosen = localStorage.getItem("dsort-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
