// The dialog of settings: system prompt, sampling, API key.

import * as store from "./store.js";

const $ = (id) => document.getElementById(id);
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

let settings = store.read("settings", {});

/** A request for an answer to `messages`. */
export function request(messages) {
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const message = ({ role, content, reasoning }) => (reasoning ? { role, content, reasoning_content: reasoning } : { role, content });
  const body = { messages: [...system, ...messages.map(message)] };
  for (const name of SAMPLING) if (settings[name] != null) body[name] = settings[name];
  return body;
}

/** Opens the dialog. */
export function edit() {
  $("set-system").value = settings.system ?? "";
  for (const name of SAMPLING) $(`set-${name}`).value = settings[name] ?? "";
  $("set-key").value = store.key();
  // In some browsers Escape leaves the value of the last time.
  $("settings").returnValue = "";
  $("settings").showModal();
}

/** Calls `onSave` after the dialog was saved, not after it was cancelled. */
export function listen(onSave) {
  $("cancel").addEventListener("click", () => $("settings").close());
  $("settings").addEventListener("close", () => {
    if ($("settings").returnValue !== "save") return;
    settings = { system: $("set-system").value.trim() || undefined };
    for (const name of SAMPLING) {
      const { value } = $(`set-${name}`);
      if (value !== "") settings[name] = Number(value);
    }
    store.setKey($("set-key").value.trim());
    store.write("settings", settings);
    onSave();
  });
}
