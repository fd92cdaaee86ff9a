// The tab with live figures.

import * as api from "./api.js";

const sum = (samples, name) =>
  Object.entries(samples).filter(([key]) => key === name || key.startsWith(`${name}{`)).reduce((total, [, value]) => total + value, 0);

const most = (samples, name) => Math.max(0, ...Object.entries(samples).filter(([key]) => key.startsWith(name)).map(([, value]) => value));

/** Tokens per second between two readings of a counter. */
const rate = (name) => (now, before, seconds) =>
  before && seconds > 0 ? Math.max(0, (sum(now, name) - sum(before, name)) / seconds).toFixed(0) : "–";

const mean = (name) => (now) => {
  const count = sum(now, `${name}_count`);
  return count ? `${((1000 * sum(now, `${name}_sum`)) / count).toFixed(0)} ms` : "–";
};

const FIGURES = [
  ["Requests running", (now) => sum(now, "halfwarp:num_requests_running")],
  ["Requests waiting", (now) => sum(now, "halfwarp:num_requests_waiting")],
  ["Generated tokens/s", rate("halfwarp:generation_tokens_total")],
  ["Prompt tokens/s", rate("halfwarp:prompt_tokens_total")],
  ["KV cache used", (now) => `${(100 * most(now, "halfwarp:kv_cache_usage_perc")).toFixed(1)} %`],
  ["Prompts found in the cache", (now) => {
    const queries = sum(now, "halfwarp:prefix_cache_queries_total");
    return queries ? `${((100 * sum(now, "halfwarp:prefix_cache_hits_total")) / queries).toFixed(0)} %` : "–";
  }],
  ["Time to first token, mean", mean("halfwarp:time_to_first_token_seconds")],
  ["Between tokens, mean", mean("halfwarp:inter_token_latency_seconds")],
  ["Preemptions", (now) => sum(now, "halfwarp:num_preemptions_total")],
  ["Requests finished", (now) => sum(now, "halfwarp:request_success_total")],
];

let timer = null;
let before = null;
let readAt = 0;

/** Reads the figures once a second while `isShown`. */
export function show(isShown, key) {
  clearInterval(timer);
  timer = null;
  before = null;
  if (!isShown) return;
  read(key());
  timer = setInterval(() => read(key()), 1000);
}

async function read(key) {
  const tiles = document.getElementById("tiles");
  const problem = document.getElementById("figures-problem");
  try {
    const now = await api.metrics(key);
    const seconds = (performance.now() - readAt) / 1000;
    tiles.replaceChildren(
      ...FIGURES.map(([name, figure]) => {
        const tile = document.createElement("div");
        const [title, value] = ["dt", "dd"].map((tag) => document.createElement(tag));
        title.textContent = name;
        value.textContent = figure(now, before, seconds);
        tile.append(title, value);
        return tile;
      }),
    );
    before = now;
    readAt = performance.now();
    problem.hidden = true;
  } catch (error) {
    tiles.replaceChildren();
    problem.textContent = api.sentence(error);
    problem.hidden = false;
  }
}
