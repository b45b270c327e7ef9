// Tables that are wider than the page scroll: with the keyboard, too.
window.addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
});

// Of a command that is shown with its output, the button copies the command alone.
window.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("[data-clipboard-target]");
    const code = button && document.querySelector(button.dataset.clipboardTarget);
    const commands = code?.textContent.match(/^\$ (?:.*\\\n)*.*$/gm);
    if (commands) button.dataset.clipboardText = commands.map((line) => line.slice(2)).join("\n");
  },
  true,
);
