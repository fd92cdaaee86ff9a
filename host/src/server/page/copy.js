// Buttons that copy a text.

/** A button that copies what `text` returns. */
export function copyButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    button.focus();
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  if (!navigator.clipboard) return copySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** For pages over HTTP of another machine: browsers give them no `navigator.clipboard`. */
function copySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}
