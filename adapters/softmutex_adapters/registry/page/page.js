// The registry's page. Asks for the picture of one group by long polls, and draws it anew each time.
//
//   #group --ask--> picture --draw--> DOM --1 s--> ages grow, the timeline moves --ask--> ...
//
// Every text is put in as text, never as markup: what members call themselves cannot run here.
"use strict";

const AGAIN_MS = 2000;
const TOKEN = "softmutex token";
const LANES_MAX = 12;
const GONE_MAX = 6;      // of those that fell silent; the others are folded
const PARTED_MAX = 40;   // lines
const SPANS_S = [30, 60, 120];  // how long a timeline is; at last as long as the picture's
const BUCKETS = 25;
const MARKS = {
  generated: "a token was made", discarded: "a token was discarded", token_lost: "a token was lost",
  overlap: "two held it at once", lost: "a hold was told that it may not be alone", overrun: "a hold overran",
  isolated: "a member reached too few others", rejoined: "a member reached the others again",
  silent: "a member fell silent while it held it",
};
const $ = (id) => document.getElementById(id);

let picture = null;      // the last one
let heard = 0;           // performance.now() when it came
let version = 0;
let asking = null;       // AbortController of the request under way
let groups = [];

// --- talking to the registry ---------------------------------------------------------------------------------------

const groupNow = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } };
const tokenNow = () => sessionStorage.getItem(TOKEN) || "";

async function get(path, signal) {
  const token = tokenNow();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
}

async function findGroups() {
  const answer = await get("/v1/groups");
  if (answer.status !== 200) return false;
  groups = (await answer.json()).groups.map((one) => one.name);
  drawGroups();
  return true;
}

async function follow() {
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  version = 0; picture = null;
  show("picture", false); show("login", false);
  for (;;) {
    try {
      if (!groupNow()) {
        const allowed = await findGroups();
        if (mine.signal.aborted) return;
        if (groups.length === 1) { history.replaceState(null, "", `#${encodeURIComponent(groups[0])}`); drawGroups(); continue; }
        ask(allowed ? (groups.length ? "" : "There is no group yet.") : tokenNow() ? "This token is not for all groups: name yours." : "");
        return;
      }
      const group = groupNow();
      const answer = await get(`/v1/groups/${encodeURIComponent(group)}/picture?after=${version}&wait=20`, mine.signal);
      if (mine.signal.aborted) return;
      if (answer.status === 200) {
        picture = await answer.json();
        heard = performance.now(); version = picture.version;
        draw();
      } else if (answer.status === 401 || answer.status === 400) {
        ask(answer.status === 401 ? (tokenNow() ? "The registry refuses this token." : "This group wants its token.") : "That is no name of a group.");
        return;
      } else if (answer.status !== 204) {
        throw new Error((await answer.json().catch(() => ({}))).error || `HTTP ${answer.status}`);
      }
      pulse("live", "live");
      trouble(picture && picture.store ? `The registry's store fails: ${picture.store}` : "");
    } catch (error) {
      if (mine.signal.aborted) return;
      pulse("lost", "no connection");
      trouble(`The registry does not answer (${error.message}). Members go on without it; this page tries again.`);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

function ask(why) {
  show("login", true); show("picture", false);
  $("login-why").textContent = why;
  $("login-group").value = groupNow();
  pulse("", "not connected");
  $(groupNow() ? "login-token" : "login-group").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("login-token").value.trim();
  if (token) sessionStorage.setItem(TOKEN, token);
  $("login-token").value = "";
  const hash = `#${encodeURIComponent($("login-group").value.trim())}`;
  if (hash !== location.hash && hash !== "#") location.hash = hash; else follow();
});
addEventListener("hashchange", () => { drawGroups(); follow(); });

// --- small things --------------------------------------------------------------------------------------------------

function pulse(kind, text) {
  if ($("pulse").textContent !== text) $("pulse").textContent = text;
  $("pulse").className = kind;
}
function trouble(text) { show("trouble", Boolean(text)); if ($("trouble").textContent !== text) $("trouble").textContent = text; }
function show(id, yes) { $(id).hidden = !yes; }

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function shape(tag, attributes, title) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (title) element.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: title }));
  return element;
}
function time(s) {
  if (s < 0.001) return "< 1 ms";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(s) / 60), rest = Math.round(s) % 60;
  if (!minutes) return `${rest} s`;
  const hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}
const number = (n) => n.toLocaleString("en");
const many = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
const widthNow = () => Math.max(260, $("mutexes").clientWidth - 38);  // inside of a card; one unit of a picture is a pixel
const since = () => (performance.now() - heard) / 1000;

/** Changes what differs, so that focus, selection and screen readers stay where they are. */
function settle(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) { old.replaceWith(fresh); return; }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const children = [...fresh.childNodes];
  children.forEach((child, place) => old.childNodes[place] ? settle(old.childNodes[place], child) : old.append(child));
  while (old.childNodes.length > children.length) old.lastChild.remove();
}

// --- drawing -------------------------------------------------------------------------------------------------------

function drawGroups() {
  $("group-name").textContent = groupNow();
  show("groups", groups.length > 1);
  $("groups").replaceChildren(...groups.map((name) => {
    const link = make("a", { href: `#${encodeURIComponent(name)}` }, name);
    if (name === groupNow()) link.setAttribute("aria-current", "page");
    return link;
  }));
}

function draw() {
  drawGroups();
  show("picture", true); show("login", false);
  const { members, mutexes } = picture;
  const names = new Map(), ids = new Map();
  for (const one of members.shown) {
    const name = one.name || one.address;
    names.set(one.key, name);
    if (one.state === "here" || !ids.has(one.id)) ids.set(one.id, name);
  }
  const call = (key) => names.get(key) || `member ${key.slice(0, 6)}`;
  const lives = new Map(members.shown.map((one) => [one.key, laneOf(one)]));
  const lane = (key) => lives.get(key) || call(key);
  const place = (id) => ids.get(id) || `node ${id.slice(0, 6)}`;
  $("mutexes-count").textContent = number(mutexes.length + picture.mutexes_omitted) + (picture.mutexes_omitted ? `, ${mutexes.length} shown` : "");
  show("mutexes-none", !mutexes.length);
  settle($("mutexes"), make("div", { id: "mutexes" }, ...mutexes.map((one) => mutexCard(one, call, place, lane))));
  const listed = members.shown.filter((one) => one.state === "here").length;
  $("members-count").textContent = `${number(members.count)}${listed < members.count ? `, ${number(listed)} shown` : ""}, ${members.reporting && members.reporting === members.count ? "all" : number(members.reporting)} report`;
  show("members-none", !members.shown.length);
  const latest = (ones) => ones.sort((a, b) => a.for_s - b.for_s);
  const gone = latest(members.shown.filter((one) => one.state === "gone"));
  const parted = [...gone.slice(GONE_MAX), ...latest(members.shown.filter((one) => one.state === "left"))];
  const inFront = [...members.shown.filter((one) => one.state === "here"), ...gone.slice(0, GONE_MAX)];
  settle($("members"), make("ul", { id: "members", "aria-label": "Members" }, ...inFront.map(memberItem)));
  settle($("parted"), make("details", { id: "parted" }, make("summary", {}, `${many(parted.length, "member")} left lately`), partedList(parted)));
  show("parted", parted.length > 0);
}

/** Of a crowd of short lives a line for each host; the latest first. */
function partedList(parted) {
  const groups = new Map();
  for (const one of parted) groups.set(laneOf(one), [...(groups.get(laneOf(one)) || []), one]);
  return make("ul", { "aria-label": "Members that left" }, ...[...groups.values()].slice(0, PARTED_MAX).map((ones) => {
    const [first] = ones, age = time(first.for_s + since()), how = first.state === "gone" ? "fell silent" : "left";
    return make("li", {}, make("bdi", {}, ones.length > 1 ? laneOf(first) : first.name || first.address),
      ones.length > 1 ? `: ${many(ones.length, "life").replace("lifes", "lives")}, the last ${how} ${age} ago` : ` ${how} ${age} ago`);
  }));
}

/** What a node is called by default tells host, process and life: those of one host belong together. */
function laneOf(one) {
  const [, host] = /^(.+)-\d+-[0-9a-f]{8}$/.exec(one.name) || [];
  return host || one.name || one.address;
}

function memberItem(one) {
  const name = one.name || one.address;
  const age = time(one.for_s + since());
  let state = `here for ${age}`, kind = "";
  if (one.state === "gone") [state, kind] = [`fell silent ${age} ago`, "gone"];
  else if (one.state === "left") [state, kind] = [`left ${age} ago`, "left"];
  else if (one.holds.length) [state, kind] = [`holds ${one.holds.join(", ")}`, "holding"];
  else if (one.waits.length) [state, kind] = [`waits for ${one.waits.join(", ")}`, "waiting"];
  return make("li", { class: kind, "aria-label": `${name}: ${state}` },
    make("div", { class: "name" }, make("bdi", {}, name)), make("div", { class: "where" }, make("bdi", {}, one.address)),
    make("div", { class: "state" }, make("bdi", {}, state)));
}

const several = (verb, one) => one.slots > 1 ? `, ${verb} ${number(one.slots)} slots` : "";

function mutexCard(one, call, place, lane) {
  const later = since();
  const facts = make("p", { class: "facts" }, [one.algorithm, many(one.acquisitions, "acquisition"), one.tokens.length && many(one.handed_over, "hand-over")].filter(Boolean).join(" · "));
  for (const [count, what] of [[one.overlap, "overlap"], [one.lost, "warned hold"], [one.overruns, "overrun"], [one.token_lost, "lost token"], [one.timeouts, "timeout"]])
    if (count) facts.append(" · ", make("span", { class: "bad" }, many(count, what)));
  const holders = one.holding.map((hold) => make("dd", { class: "holds" }, make("bdi", {}, call(hold.member)), ` for ${time(hold.for_s + later)}, after ${time(hold.waited_s)}${several("takes", hold)}`));
  const waiters = one.waiting.slice(0, 4).map((wait) => make("dd", { class: "waits" }, make("bdi", {}, call(wait.member)), ` for ${time(wait.for_s + later)}${several("wants", wait)}${wait.priority ? `, priority ${wait.priority}` : ""}`));
  if (one.waiting_count > 4) waiters.push(make("dd", { class: "quiet" }, `and ${number(one.waiting_count - Math.min(4, waiters.length))} more`));
  const tokens = one.tokens.map((token) => make("dd", {}, make("bdi", {}, place(token.at)), make("span", { class: "quiet" }, `${one.tokens.length > 1 ? `, slot ${token.slot}` : ""}, epoch ${token.epoch}, hop ${number(token.hop)}`)));
  const column = (title, items, none) => make("div", {}, make("dt", {}, title), ...(items.length ? items : [make("dd", { class: "quiet" }, none)]));
  const marks = picture.marks.filter((mark) => mark.mutex === one.name);
  return make("article", { class: "card", "aria-label": `Mutex ${one.name}` },
    make("div", { class: "top" }, make("h3", {}, make("bdi", {}, one.name)), facts),
    make("dl", { class: "now" }, column("held by", holders, "nobody"), column(`waiting${one.waiting_count ? ` (${number(one.waiting_count)})` : ""}`, waiters, "nobody"), ...(tokens.length ? [column(tokens.length > 1 ? "tokens" : "token", tokens)] : [])),
    timeline(one, marks, call, lane, later),
    make("div", { class: "dists" }, distribution("Wait", "waits", one.waits, one.wait_max_s), distribution("Hold", "held", one.holds, one.hold_max_s)),
    events(marks, call, later));
}

function events(marks, call, later) {
  const told = marks.slice(-20).reverse().map((mark) => make("li", {}, `${time(mark.ago_s + later)} ago: ${MARKS[mark.kind] || mark.kind} (`, make("bdi", {}, call(mark.member)), `${mark.detail ? `, ${mark.detail}` : ""})`));
  return make("details", {}, make("summary", {}, many(marks.length, "event")), make("ul", {}, ...(told.length ? told : [make("li", {}, "nothing happened but holds")])));
}

/** A lane for each member that held it lately, or for all lives of one host; above them what went wrong. */
function timeline(one, marks, call, lane, later) {
  const spans = picture.spans.filter((hold) => hold.mutex === one.name);
  const oldest = Math.max(0, ...spans.map((hold) => hold.from_s), ...marks.map((mark) => mark.ago_s), ...one.holding.map((hold) => hold.for_s)) + later;
  const span = SPANS_S.find((each) => each >= oldest) || picture.span_s;
  const last = new Map();
  for (const hold of spans) last.set(lane(hold.member), Math.min(last.get(lane(hold.member)) ?? Infinity, hold.to_s));
  for (const hold of one.holding) last.set(lane(hold.member), 0);
  const members = new Set([...spans, ...one.holding].map((hold) => hold.member));
  const lanes = [...last].sort((a, b) => a[1] - b[1]).slice(0, LANES_MAX).map(([name]) => name).sort((a, b) => a.localeCompare(b));
  const wide = widthNow(), left = wide < 600 ? 96 : 160, letters = Math.floor(left / 7);
  const row = 20, top = 18, high = top + lanes.length * row + 18;
  const x = (ago) => left + (wide - left) * (1 - Math.min(ago, span) / span);
  const said = `Timeline of ${one.name}: in the last ${time(span)} ${many(spans.reduce((sum, hold) => sum + hold.count, 0) + one.holding.length, "hold")} by ${many(members.size, "member")}, ${many(marks.filter((mark) => mark.ago_s < span).length, "event")}`;
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": said });
  lanes.forEach((name, place) => {
    const y = top + place * row;
    const label = shape("text", { x: 0, y: y + 12 }, name);
    label.append(name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
    svg.append(label, shape("rect", { class: "lane", x: left, y: y + 2, width: wide - left, height: row - 6, rx: 3 }));
    for (const hold of spans.filter((each) => lane(each.member) === name)) {
      const from = x(hold.from_s + later), to = x(hold.to_s + later);
      if (hold.to_s + later > span) continue;
      const share = Math.min(1, hold.held_s / Math.max(hold.from_s - hold.to_s, 0.001));
      svg.append(shape("rect", { class: "span", x: from.toFixed(1), y: y + 2, width: Math.max(to - from, 1.5).toFixed(1), height: row - 6, rx: 2, opacity: (0.35 + 0.65 * share).toFixed(2) },
        `${call(hold.member)}: ${hold.count > 1 ? `${number(hold.count)} holds, ` : ""}${time(hold.held_s)}, ended ${time(hold.to_s + later)} ago`));
    }
    for (const hold of one.holding.filter((each) => lane(each.member) === name))
      svg.append(shape("rect", { class: "open", x: x(hold.for_s + later).toFixed(1), y: y + 2, width: Math.max(wide - x(hold.for_s + later), 2).toFixed(1), height: row - 6, rx: 2 }, `${call(hold.member)} holds it for ${time(hold.for_s + later)}`));
  });
  for (const mark of marks.filter((each) => each.ago_s + later < span)) {
    const at = x(mark.ago_s + later);
    svg.append(shape("path", { class: `mark ${mark.kind}`, d: `M${at.toFixed(1)} 3l5 6l-5 6l-5 -6z` }, `${time(mark.ago_s + later)} ago: ${MARKS[mark.kind] || mark.kind} (${call(mark.member)}${mark.detail ? `, ${mark.detail}` : ""})`));
  }
  for (const share of wide < 600 ? [0, 1] : [0, 1 / 3, 2 / 3, 1]) {
    const text = shape("text", { x: (left + (wide - left) * share).toFixed(1), y: high - 3, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" });
    text.append(share === 1 ? "now" : `${time(span * (1 - share))} ago`);
    svg.append(text);
  }
  return make("figure", {}, svg);
}

const edge = (place) => 2 ** place / 1000;
function quantile(counts, share, most) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (let place = 0; place < BUCKETS; place++) if ((seen += counts[place]) >= share * total) return Math.min(edge(place), most);
  return most;
}

function distribution(title, kind, counts, most) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const first = counts.findIndex((count) => count), last = counts.findLastIndex((count) => count);
  const said = total ? `half under ${time(quantile(counts, 0.5, most))}, 99 % under ${time(quantile(counts, 0.99, most))}, longest ${time(most)}` : "none yet";
  const from = Math.max(0, Math.min(first < 0 ? 0 : first - 1, BUCKETS - 8)), to = Math.min(BUCKETS, Math.max(last + 2, from + 8));
  const room = widthNow(), wide = room < 504 ? room : (room - 24) / 2, high = 64, step = wide / (to - from), peak = Math.max(...counts, 1);
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${high + 16}`, role: "img", "aria-label": `${title} times: ${many(total, "time")}, ${said}` });
  for (let place = from; place < to; place++) {
    const tall = counts[place] ? Math.max(2, counts[place] / peak * high) : 0;
    const under = place === BUCKETS - 1 ? "longer" : `under ${time(edge(place))}`;
    svg.append(shape("rect", { class: `bar ${kind}`, x: ((place - from) * step + 1).toFixed(1), y: (high - tall).toFixed(1), width: (step - 2).toFixed(1), height: tall.toFixed(1), rx: 2 }, `${under}: ${number(counts[place])}`));
    if ((place - from) % (step < 22 ? 3 : 2) === 0) {
      const at = (place - from + 1) * step;
      const text = shape("text", { x: Math.min(at, wide).toFixed(1), y: high + 13, "text-anchor": at > wide - 14 ? "end" : "middle" });
      text.append(time(edge(place)));
      svg.append(text);
    }
  }
  svg.append(shape("line", { class: "base", x1: 0, x2: wide, y1: high, y2: high }));
  return make("figure", {}, make("figcaption", {}, `${title}: ${said}`), svg);
}

setInterval(() => { if (picture && !document.hidden) draw(); }, 1000);
findGroups().catch(() => false).finally(follow);
