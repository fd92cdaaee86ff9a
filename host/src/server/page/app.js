// The page to chat: conversations, which stay in this browser, and the messages of the open one.

import * as api from "./api.js";
import * as figures from "./figures.js";
import { render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

// What is stored: `conversations` [{id, name, messages: [{role, content}]}], `settings`, `theme`. The API key lives as long
// as the tab.
const store = {
  read(name, fallback) {
    try {
      return JSON.parse(localStorage.getItem(`halfwarp.${name}`)) ?? fallback;
    } catch {
      return fallback;
    }
  },
  write(name, value) {
    try {
      localStorage.setItem(`halfwarp.${name}`, JSON.stringify(value));
    } catch {
      problem("This browser stores no more: delete a conversation.");
    }
  },
};

let conversations = store.read("conversations", []);
let settings = store.read("settings", {});
let open = conversations[0] ?? fresh();
/** Of the answer that streams in: its AbortController, else null. */
let running = null;
let context = null;

const key = () => sessionStorage.getItem("halfwarp.key") ?? "";

function fresh() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()), name: "", messages: [] };
}

function problem(text) {
  $("problem").textContent = text ?? "";
  $("problem").hidden = !text;
}

function save() {
  conversations = [open, ...conversations.filter(({ id }) => id !== open.id)].filter(({ messages }) => messages.length);
  store.write("conversations", conversations);
  drawList();
}

function drawList() {
  const items = conversations.map((conversation) => {
    const item = document.createElement("li");
    item.className = conversation.id === open.id ? "is-open" : "";
    const name = button(conversation.name || "Conversation", () => select(conversation));
    name.className = "name";
    const remove = button("✕", () => {
      conversations = conversations.filter(({ id }) => id !== conversation.id);
      store.write("conversations", conversations);
      if (conversation.id === open.id) select(conversations[0] ?? fresh());
      else drawList();
    });
    remove.setAttribute("aria-label", `Delete ${conversation.name}`);
    item.append(name, remove);
    return item;
  });
  $("conversations").replaceChildren(...items);
}

function select(conversation) {
  stop();
  open = conversation;
  problem();
  $("status").textContent = "";
  $("sidebar").classList.remove("is-open");
  drawList();
  draw();
  $("prompt").focus();
}

function button(text, action) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  node.addEventListener("click", action);
  return node;
}

function draw() {
  const nodes = open.messages.map((message, index) => messageNode(message, index));
  if (!nodes.length) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = "Ask something. What is said here stays in this browser.";
    nodes.push(empty);
  }
  $("messages").replaceChildren(...nodes);
  $("messages").scrollTop = $("messages").scrollHeight;
}

function messageNode(message, index) {
  const node = document.createElement("article");
  node.className = `message ${message.role}`;
  node.setAttribute("aria-label", message.role === "user" ? "You" : "The model");
  const body = document.createElement("div");
  body.className = "body";
  fill(body, message);
  const tools = document.createElement("div");
  tools.className = "tools";
  if (message.role === "user") {
    tools.append(button("Edit", () => edit(body, index)));
  } else {
    tools.append(button("Copy", () => navigator.clipboard?.writeText(message.content)));
    if (index === open.messages.length - 1) tools.append(button("Regenerate", () => ask(index)));
  }
  node.append(body, tools);
  return node;
}

function fill(body, { role, content }) {
  if (role === "user") body.textContent = content;
  else body.replaceChildren(...render(content));
}

/** Lets the user write message `index` anew; what came after it is dropped. */
function edit(body, index) {
  const area = document.createElement("textarea");
  area.value = open.messages[index].content;
  area.rows = Math.min(12, area.value.split("\n").length + 1);
  area.setAttribute("aria-label", "Edit the message");
  const done = () => {
    const content = area.value.trim();
    if (!content) return;
    open.messages[index].content = content;
    ask(index + 1);
  };
  area.addEventListener("keydown", (event) => {
    if (isEnter(event)) {
      event.preventDefault();
      done();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      draw();
    }
  });
  const tools = document.createElement("div");
  tools.className = "row";
  tools.append(button("Send", done), button("Cancel", draw));
  body.replaceChildren(area, tools);
  area.focus();
}

const isEnter = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

/** Asks for an answer to the first `length` messages. */
async function ask(length) {
  stop();
  problem();
  const conversation = open;
  conversation.messages.length = length;
  const answer = { role: "assistant", content: "" };
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const body = { messages: [...system, ...conversation.messages.map(({ role, content }) => ({ role, content }))] };
  for (const name of SAMPLING) if (settings[name] != null) body[name] = settings[name];
  conversation.messages.push(answer);
  if (!conversation.name) conversation.name = conversation.messages[0].content.slice(0, 60);
  save();
  draw();

  const control = new AbortController();
  running = control;
  setRunning(true);
  const target = $("messages").lastElementChild.querySelector(".body");
  const started = performance.now();
  let first = 0;
  let pieces = 0;
  let frame = 0;
  const show = () => {
    frame = 0;
    const log = $("messages");
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    fill(target, answer);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };
  try {
    const { reason, usage } = await api.stream(body, key(), control.signal, (text) => {
      first ||= performance.now();
      pieces += 1;
      answer.content += text;
      frame ||= requestAnimationFrame(show);
    });
    $("status").textContent = statusOf(usage, pieces, started, first, reason);
  } catch (error) {
    if (error.name !== "AbortError") problem(error instanceof api.ApiError ? error.message : "The server does not answer.");
    else $("status").textContent = "Stopped.";
  }
  cancelAnimationFrame(frame);
  // An answer that never began is none.
  if (!answer.content) conversation.messages = conversation.messages.filter((message) => message !== answer);
  if (running === control) {
    running = null;
    setRunning(false);
  }
  if (conversation === open) {
    save();
    draw();
  } else {
    store.write("conversations", conversations);
  }
}

function statusOf(usage, pieces, started, first, reason) {
  const tokens = usage?.completion_tokens ?? pieces;
  const seconds = (performance.now() - first) / 1000;
  const parts = [`${tokens} tokens`];
  if (first && tokens > 1) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (first) parts.push(`first after ${Math.round(first - started)} ms`);
  if (usage) parts.push(`context ${usage.total_tokens}${context ? ` of ${context}` : ""}`);
  if (reason === "length") parts.push("cut: no more tokens were allowed");
  return parts.join(" · ");
}

function stop() {
  running?.abort();
  running = null;
  setRunning(false);
}

function setRunning(isRunning) {
  $("stop").hidden = !isRunning;
  $("send").hidden = isRunning;
  $("messages").setAttribute("aria-busy", String(isRunning));
}

function grow() {
  const area = $("prompt");
  area.rows = Math.min(10, area.value.split("\n").length);
}

function send() {
  const content = $("prompt").value.trim();
  if (!content || running) return;
  $("prompt").value = "";
  grow();
  open.messages.push({ role: "user", content });
  ask(open.messages.length);
}

function openSettings() {
  $("set-system").value = settings.system ?? "";
  for (const name of SAMPLING) $(`set-${name}`).value = settings[name] ?? "";
  $("set-key").value = key();
  $("settings").showModal();
}

function saveSettings() {
  settings = { system: $("set-system").value.trim() || undefined };
  for (const name of SAMPLING) {
    const { value } = $(`set-${name}`);
    if (value !== "") settings[name] = Number(value);
  }
  sessionStorage.setItem("halfwarp.key", $("set-key").value.trim());
  store.write("settings", settings);
  readModel();
}

function showTab(name) {
  for (const tab of ["chat", "figures"]) {
    const isShown = tab === name;
    $(tab).hidden = !isShown;
    $(`tab-${tab}`).setAttribute("aria-selected", String(isShown));
    $(`tab-${tab}`).tabIndex = isShown ? 0 : -1;
  }
  figures.show(name === "figures", key);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  store.write("theme", theme);
}

async function readModel() {
  try {
    const { id, max_model_len } = await api.model(key());
    context = max_model_len ?? null;
    $("model").textContent = context ? `${id}, context ${context}` : id;
    problem();
  } catch (error) {
    problem(error instanceof api.ApiError ? error.message : "The server does not answer.");
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (isEnter(event)) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", () => select(fresh()));
$("open-sidebar").addEventListener("click", () => $("sidebar").classList.add("is-open"));
$("close-sidebar").addEventListener("click", () => $("sidebar").classList.remove("is-open"));
$("open-settings").addEventListener("click", openSettings);
$("settings").addEventListener("close", () => {
  if ($("settings").returnValue === "save") saveSettings();
});
$("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() === "#14171a";
  setTheme(isDark ? "light" : "dark");
});
for (const tab of ["chat", "figures"]) {
  $(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  $(`tab-${tab}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tab === "chat" ? "figures" : "chat";
    showTab(other);
    $(`tab-${other}`).focus();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) stop();
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    select(fresh());
  }
});

setTheme(store.read("theme", null));
drawList();
draw();
readModel();
