// The page to chat: the list of conversations, and the messages of the open one.

import * as api from "./api.js";
import { copyButton } from "./copy.js";
import * as figures from "./figures.js";
import { render } from "./markdown.js";
import * as picker from "./picker.js";
import * as settings from "./settings.js";
import * as store from "./store.js";

const $ = (id) => document.getElementById(id);

let conversations = store.read("conversations", []);
let open = conversations[0] ?? fresh();
/** Of the answer that streams in: its AbortController, else null. */
let running = null;
/** Tokens of the model's context, if the server says it. */
let context = null;
/** The timer of the next try to read the models, and whether they were read. */
let retry = null;
let isRead = false;

function fresh() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()), name: "", messages: [] };
}

function problem(text) {
  $("problem").textContent = text ?? "";
  $("problem").hidden = !text;
}

/** Puts the open conversation first, and stores all. */
function save() {
  conversations = [open, ...conversations.filter(({ id }) => id !== open.id)].filter(({ messages }) => messages.length);
  storeAll();
  drawList();
}

function storeAll() {
  const kept = conversations.map((one) => ({ ...one, messages: one.messages.filter(hasBegun) }));
  if (!store.write("conversations", kept)) problem("This browser stores no more: delete a conversation.");
}

/** An answer that has not begun is none. */
const hasBegun = ({ content, reasoning }) => Boolean(content || reasoning);

function drawList() {
  const items = conversations.map((conversation) => {
    const item = document.createElement("li");
    const name = button(conversation.name, () => select(conversation));
    name.className = "name";
    name.title = conversation.name;
    if (conversation.id === open.id) name.setAttribute("aria-current", "true");
    const remove = button("", () => removeConversation(conversation));
    remove.className = "icon";
    remove.setAttribute("aria-label", `Delete ${conversation.name}`);
    remove.append($("close-sidebar").firstElementChild.cloneNode(true));
    item.append(name, remove);
    return item;
  });
  $("conversations").replaceChildren(...items);
}

function removeConversation({ id }) {
  conversations = conversations.filter((one) => one.id !== id);
  storeAll();
  if (id === open.id) select(conversations[0] ?? fresh());
  else drawList();
}

function select(conversation) {
  stop();
  open = conversation;
  problem();
  $("status").textContent = "";
  showSidebar(false);
  drawList();
  draw();
  focusPrompt();
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
  $("messages").replaceChildren(...(nodes.length ? nodes : [$("empty").content.cloneNode(true)]));
  $("messages").scrollTop = $("messages").scrollHeight;
}

/** The style sheet hides the tools that are for the last message only. */
function messageNode(message, index) {
  const node = document.createElement("article");
  node.className = `message ${message.role}`;
  node.setAttribute("aria-label", message.role === "user" ? "You" : "The model");
  const body = document.createElement("div");
  body.className = "body";
  fill(body, message);
  const tools = document.createElement("div");
  tools.className = "tools";
  const isUser = message.role === "user";
  const again = button(isUser ? "Try again" : "Regenerate", () => ask(isUser ? index + 1 : index));
  again.className = "for-last";
  tools.append(isUser ? button("Edit", () => edit(node, index)) : copyButton(() => message.content), again);
  node.append(body, tools);
  showReasoning(node, message);
  return node;
}

/** Shows what the model thought, folded, above its answer. */
function showReasoning(node, { content, reasoning }) {
  if (!reasoning) return;
  let details = node.querySelector(".reasoning");
  if (!details) {
    details = document.createElement("details");
    details.className = "reasoning";
    details.append(document.createElement("summary"), document.createElement("div"));
    node.prepend(details);
  }
  details.firstElementChild.textContent = content ? "Thought" : "Thinking \u2026";
  details.lastElementChild.textContent = reasoning;
}

function fill(body, { role, content }) {
  if (role === "user") body.textContent = content;
  else body.replaceChildren(...render(content));
}

/** Lets the user write message `index`, which `node` shows, anew; what came after it is dropped. */
function edit(node, index) {
  const area = document.createElement("textarea");
  area.value = open.messages[index].content;
  area.setAttribute("aria-label", "Edit the message");
  area.addEventListener("input", () => fit(area));
  const done = () => {
    const content = area.value.trim();
    if (!content) return;
    open.messages[index].content = content;
    ask(index + 1);
    focusPrompt();
  };
  const cancel = () => {
    const restored = messageNode(open.messages[index], index);
    node.replaceWith(restored);
    restored.querySelector(".tools button").focus();
  };
  area.addEventListener("keydown", (event) => {
    if (isEnter(event)) {
      event.preventDefault();
      done();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    }
  });
  const send = button("Send", done);
  send.className = "primary";
  const actions = document.createElement("div");
  actions.className = "actions";
  actions.append(button("Cancel", cancel), send);
  node.classList.add("is-edited");
  node.replaceChildren(area, actions);
  fit(area);
  area.focus();
}

const isEnter = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

/** Asks for an answer to the first `length` messages. */
async function ask(length) {
  stop();
  problem();
  const conversation = open;
  conversation.messages.length = length;
  if (!conversation.name) conversation.name = conversation.messages[0].content.slice(0, 60);
  const request = { ...settings.request(conversation.messages), ...picker.request() };
  const answer = { role: "assistant", content: "" };
  conversation.messages.push(answer);
  save();
  draw();

  const control = new AbortController();
  running = control;
  setRunning(true);
  $("status").textContent = picker.waiting();
  const time = { start: performance.now(), first: 0, pieces: 0 };
  let frame = 0;
  const show = () => {
    frame = 0;
    const log = $("messages");
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    fill(log.lastElementChild.querySelector(".body"), answer);
    showReasoning(log.lastElementChild, answer);
    $("status").textContent = statusOf(time);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };
  let status = "";
  let failure = null;
  try {
    const { reason, usage } = await api.stream(request, store.key(), control.signal, ({ content, reasoning }) => {
      time.first ||= performance.now();
      time.pieces += 1;
      answer.content += content;
      if (reasoning) answer.reasoning = (answer.reasoning ?? "") + reasoning;
      if (running === control) frame ||= requestAnimationFrame(show);
    });
    status = statusOf(time, usage, reason);
  } catch (error) {
    if (error.name === "AbortError") status = "Stopped.";
    else failure = error;
  }
  cancelAnimationFrame(frame);
  if (!hasBegun(answer)) conversation.messages = conversation.messages.filter((message) => message !== answer);
  storeAll();
  // The model was loaded for it, and another one may have made room.
  readModels();
  // Another answer, or another conversation, is shown by now.
  if (conversation !== open || (running ?? control) !== control) return;
  running = null;
  setRunning(false);
  $("status").textContent = status;
  const last = $("messages").lastElementChild;
  if (hasBegun(answer)) {
    const whole = messageNode(answer, length);
    // What the user has unfolded stays so.
    whole.querySelector(".reasoning")?.toggleAttribute("open", last.querySelector(".reasoning")?.open ?? false);
    last.replaceWith(whole);
  } else last.remove();
  if (!failure) return;
  problem(api.sentence(failure));
  $("messages").lastElementChild.scrollIntoView({ block: "end" });
}

function statusOf({ start, first, pieces }, usage, reason) {
  const tokens = usage?.completion_tokens ?? pieces;
  const seconds = (performance.now() - first) / 1000;
  const parts = [`${tokens} tokens`];
  if (first && tokens > 1) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (first) parts.push(`first token after ${Math.round(first - start)} ms`);
  if (usage) parts.push(`context ${usage.total_tokens}${context ? ` of ${context}` : ""}`);
  if (reason === "length") parts.push("cut off at the limit of tokens");
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

/** Makes a text area as high as its text; the style sheet has a limit. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

/** Not on a touch screen, whose keyboard would hide the conversation. */
function focusPrompt() {
  if (!matchMedia("(hover: none)").matches) $("prompt").focus();
}

function send() {
  const content = $("prompt").value.trim();
  if (!content || running) return;
  $("prompt").value = "";
  fit($("prompt"));
  open.messages.push({ role: "user", content });
  ask(open.messages.length);
  focusPrompt();
}

function showSidebar(isShown) {
  $("sidebar").classList.toggle("is-open", isShown);
  $("open-sidebar").setAttribute("aria-expanded", String(isShown));
  if (isShown) $("close-sidebar").focus();
}

function closeSidebar() {
  showSidebar(false);
  $("open-sidebar").focus();
}

function showTab(name) {
  for (const tab of ["chat", "figures"]) {
    const isShown = tab === name;
    $(tab).hidden = !isShown;
    $(`tab-${tab}`).setAttribute("aria-selected", String(isShown));
    $(`tab-${tab}`).tabIndex = isShown ? 0 : -1;
  }
  figures.show(name === "figures", store.key);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

async function readModels() {
  clearTimeout(retry);
  try {
    picker.show(await api.models(store.key()));
    showModel();
    if (!isRead) problem();
    isRead = true;
  } catch (error) {
    isRead = false;
    problem(api.sentence(error));
    // The model is loading, or the server is being started.
    if (!error.status || error.status === 503) retry = setTimeout(readModels, 1000);
  }
}

/** Names the model that answers, and its context if that is known. */
function showModel() {
  const model = picker.chosen();
  context = model?.max_model_len ?? null;
  const about = context ? `context of ${context} tokens` : "";
  $("model").textContent = model ? [$("picker").hidden ? model.id : "", about].filter(Boolean).join(", ") : "No model is there yet.";
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("input", () => fit($("prompt")));
$("prompt").addEventListener("keydown", (event) => {
  if (isEnter(event)) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", () => {
  stop();
  focusPrompt();
});
$("new-chat").addEventListener("click", () => {
  showTab("chat");
  select(fresh());
});
$("open-sidebar").addEventListener("click", () => showSidebar(true));
$("close-sidebar").addEventListener("click", closeSidebar);
// Beside the open list.
document.querySelector("main").addEventListener("click", () => showSidebar(false), true);
$("open-settings").addEventListener("click", settings.edit);
settings.listen(readModels);
picker.listen(showModel);
$("theme").addEventListener("click", () => {
  const current = document.documentElement.dataset.theme;
  const isDark = current ? current === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(isDark ? "light" : "dark");
  store.write("theme", isDark ? "light" : "dark");
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
  if (event.key === "Escape" && !$("settings").open) {
    if ($("sidebar").classList.contains("is-open")) closeSidebar();
    else if (running) stop();
  }
  if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    $("new-chat").click();
  }
});
// What an answer has so far: a page that is left may not learn that its request has ended.
addEventListener("pagehide", () => {
  if (running) storeAll();
});

setTheme(store.read("theme", null));
drawList();
draw();
readModels();
