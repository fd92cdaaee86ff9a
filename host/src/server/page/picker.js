// The choice of a model, where the server has several.

import * as store from "./store.js";

const select = document.getElementById("picker");
let models = [];

const stateOf = ({ status }) => status?.value ?? "loaded";

/** Shows the models of the server and what they are doing; the chosen one stays chosen. */
export function show(list) {
  const wanted = chosen()?.id ?? store.read("model", null);
  models = list;
  select.hidden = models.length < 2;
  const options = models.map((model) => {
    const option = document.createElement("option");
    option.value = model.id;
    const failed = model.status?.failed && stateOf(model) === "unloaded";
    option.textContent = `${model.id} (${failed ? "failed" : stateOf(model)})`;
    option.title = model.status?.error ?? "";
    return option;
  });
  select.replaceChildren(...options);
  const first = models.find(({ id }) => id === wanted) ?? models.find((model) => stateOf(model) === "loaded") ?? models[0];
  if (first) select.value = first.id;
}

/** The model that answers the next question. */
export const chosen = () => models.find(({ id }) => id === select.value) ?? models[0];

/** What a request says of it: nothing where there is no choice. */
export const request = () => (models.length > 1 ? { model: select.value } : {});

/** What to say while it is not there, else nothing. */
export const waiting = () => (models.length > 1 && stateOf(chosen()) !== "loaded" ? `Loading ${select.value} \u2026` : "");

/** Calls `onChange` when another model was chosen. */
export function listen(onChange) {
  select.addEventListener("change", () => {
    store.write("model", select.value);
    onChange();
  });
}
