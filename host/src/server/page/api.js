// The server's API: what this page needs of it.

/** An error of the server, in its own words, with the status of the response if it is one of HTTP. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** What went wrong, as a sentence. */
export function sentence(error) {
  if (!(error instanceof ApiError)) return "The server does not answer. Is it still running?";
  if (error.status === 401) return "This server wants an API key: give it in the settings.";
  const text = error.message.replace(/\.$/, "");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function headers(key) {
  return key ? { "content-type": "application/json", authorization: `Bearer ${key}` } : { "content-type": "application/json" };
}

async function check(response) {
  if (response.ok) return response;
  let message = `the server answers with status ${response.status}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // Not JSON: the status says enough.
  }
  throw new ApiError(message, response.status);
}

/** The models that are served, each with its state, and with its context where the server says it. */
export async function models(key) {
  const response = await check(await fetch("v1/models", { headers: headers(key) }));
  return (await response.json()).data;
}

/** Streams an answer; `onDelta` gets each piece of its text, or of the reasoning before it. Returns the reason of its end, and the usage. */
export async function stream(body, key, signal, onDelta) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await check(
    await fetch("v1/chat/completions", { method: "POST", headers: headers(key), body: JSON.stringify(request), signal }),
  );
  const result = { reason: null, usage: null };
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return result;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    if (chunk.usage) result.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    const { content, reasoning_content } = choice?.delta ?? {};
    if (content || reasoning_content) onDelta({ content: content ?? "", reasoning: reasoning_content ?? "" });
    if (choice?.finish_reason) result.reason = choice.finish_reason;
  }
  throw new ApiError("the connection ended before the answer did");
}

/** The data of each server-sent event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}

/** The samples of `/metrics`, by name and labels, as numbers. */
export async function metrics(key) {
  const response = await check(await fetch("metrics", { headers: headers(key) }));
  const samples = {};
  for (const line of (await response.text()).split("\n")) {
    const match = /^([^#\s{]+)(\{[^}]*\})?\s+(\S+)/.exec(line);
    if (match) samples[match[1] + (match[2] ?? "")] = Number(match[3]);
  }
  return samples;
}
