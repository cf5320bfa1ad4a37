"use strict";
/* Before anything is drawn: light or dark, if the reader has chosen. */
(() => {
  const KEY = "dsort-theme";
  const chosen = localStorage.getItem(KEY);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  window.dsort = window.dsort || {};

  /** Choose, and remember it in this browser. */
  window.dsort.setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(KEY, theme);
    document.dispatchEvent(new Event("dsort-theme"));
  };
})();
