// Markdown as DOM nodes. Text never becomes HTML: every node is made by hand, and a link goes to http, https or mailto.

import { copyButton } from "./copy.js";

/** Quotes and lists inside one another; deeper ones are shown as text. */
const MAX_DEPTH = 12;

/** The nodes of `source`. Unfinished Markdown, as it streams in, is shown as far as it goes. */
export function render(source) {
  return blocks(source.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function element(name, children = [], attributes = {}) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function blocks(lines, depth) {
  if (depth > MAX_DEPTH) return [element("p", inline(lines.join("\n")))];
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let match;
    if (!line.trim()) {
      at += 1;
    } else if ((match = FENCE.exec(line))) {
      const end = lines.findIndex((other, i) => i > at && other.trim().startsWith(match[1]));
      const last = end < 0 ? lines.length : end;
      nodes.push(code(lines.slice(at + 1, last).join("\n"), match[2]));
      at = last + 1;
    } else if ((match = HEADING.exec(line))) {
      nodes.push(element(`h${match[1].length}`, inline(match[2].trimEnd().replace(/(^| )#+$/, ""))));
      at += 1;
    } else if (RULE.test(line)) {
      nodes.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line)) {
      const start = at;
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      nodes.push(element("blockquote", blocks(lines.slice(start, at).map((l) => l.replace(QUOTE, "")), depth + 1)));
    } else if (ITEM.test(line)) {
      const [list, next] = listAt(lines, at, depth + 1);
      nodes.push(list);
      at = next;
    } else if (line.includes("|") && DELIMITERS.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const start = at;
      while (at < lines.length && lines[at].includes("|")) at += 1;
      nodes.push(table(lines.slice(start, at)));
    } else {
      const start = at;
      do at += 1;
      while (at < lines.length && lines[at].trim() && !startsBlock(lines[at]));
      nodes.push(element("p", inline(lines.slice(start, at).join("\n"))));
    }
  }
  return nodes;
}

function startsBlock(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

/** A list, and the line after it. Lines indented further than an item belong to it. */
function listAt(lines, start, level) {
  const [, indent, marker] = ITEM.exec(lines[start]);
  const isOrdered = /\d/.test(marker);
  const list = element(isOrdered ? "ol" : "ul");
  if (isOrdered && parseInt(marker, 10) !== 1) list.setAttribute("start", parseInt(marker, 10));
  let at = start;
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length !== indent.length || /\d/.test(match[2]) !== isOrdered) break;
    const depth = match[0].length - match[3].length;
    const own = [match[3]];
    at += 1;
    while (at < lines.length) {
      const spaces = lines[at].search(/\S/);
      if (spaces < 0 ? !/^\s{2,}\S/.test(lines[at + 1] ?? "") : spaces <= indent.length) break;
      own.push(lines[at].slice(Math.min(depth, Math.max(spaces, 0))));
      at += 1;
    }
    const nodes = blocks(own, level);
    const isPlain = nodes.length > 0 && nodes[0].tagName === "P";
    list.append(element("li", isPlain ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes));
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  return [list, at];
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  const row = (line, name) => element("tr", cells(line).map((cell) => element(name, cell)));
  return element("table", [
    element("thead", [row(lines[0], "th")]),
    element("tbody", lines.slice(2).map((line) => row(line, "td"))),
  ]);
}

function code(text, language) {
  const bar = element("div", [element("span", [language]), copyButton(() => text)], { class: "row" });
  return element("div", [bar, element("pre", [element("code", [text])])], { class: "code" });
}

// Code, links, bold, italic, struck out, a line break, a bare address: whichever comes first.
const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\[([^\]\n]+)\]\(([^()\s]+)\)|(\*\*|__)(?=\S)([\s\S]*?\S)\5|(\*|_)(?=\S)([^*_\n]*?[^\s*_])\7(?!\w)|~~(?=\S)([\s\S]*?\S)~~| {2,}\n|(https?:\/\/[^\s<>"')\]]+)/;

function inline(text) {
  const nodes = [];
  for (let rest = text; rest; ) {
    const match = INLINE.exec(rest);
    if (!match) {
      nodes.push(rest);
      break;
    }
    const before = rest.slice(0, match.index);
    // An underscore inside a word is one.
    if (match[7] === "_" && /\w$/.test(before)) {
      nodes.push(rest.slice(0, match.index + 1));
      rest = rest.slice(match.index + 1);
      continue;
    }
    if (before) nodes.push(before);
    if (match[1]) nodes.push(element("code", [match[2].replace(/^ (.+) $/, "$1")]));
    else if (match[4]) nodes.push(link(match[4], inline(match[3])));
    else if (match[6]) nodes.push(element("strong", inline(match[6])));
    else if (match[8]) nodes.push(element("em", inline(match[8])));
    else if (match[9]) nodes.push(element("s", inline(match[9])));
    else if (match[10]) nodes.push(link(match[10], [match[10]]));
    else nodes.push(element("br"));
    rest = rest.slice(match.index + match[0].length);
  }
  return nodes;
}

function link(target, children) {
  if (!/^(https?:|mailto:)/i.test(target)) return element("span", children);
  return element("a", children, { href: target, target: "_blank", rel: "noopener noreferrer" });
}
