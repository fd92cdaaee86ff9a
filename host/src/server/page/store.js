// What this browser keeps: `conversations` [{id, name, messages: [{role, content, reasoning}]}], `settings` and `theme`. The API key lives
// as long as the tab.

export function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`halfwarp.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Returns whether there was room for it. */
export function write(name, value) {
  try {
    localStorage.setItem(`halfwarp.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const key = () => sessionStorage.getItem("halfwarp.key") ?? "";

export const setKey = (key) => sessionStorage.setItem("halfwarp.key", key);
