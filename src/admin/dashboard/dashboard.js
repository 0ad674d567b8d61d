// The dashboard: reads the gateway's state from /api/events once a second, and shows rates and counts.
// Everything from the gateway is written as text, never as markup.

const HISTORY = 120; // samples, one a second
const LATENCY_SAMPLES = 10;
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Formats

const whole = new Intl.NumberFormat("en");
const count = (n) => whole.format(n);
const rate = (n) => (n >= 100 ? count(Math.round(n)) : n >= 10 ? n.toFixed(0) : n > 0 ? n.toFixed(1) : "0");
function seconds(s) {
  if (s === null) return "–";
  if (s >= 10) return `${s.toFixed(0)} s`;
  if (s >= 1) return `${s.toFixed(1)} s`;
  const ms = s * 1e3;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : ms >= 1 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(2)} ms`;
}
function duration(ms) {
  const s = Math.floor(ms / 1e3);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} days`;
}
const percent = (share) => `${share === 0 ? 0 : Number((100 * share).toPrecision(2))} %`;
const mib = (bytes) => count(Math.ceil(bytes / 2 ** 20));
const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

// Elements

function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}
function create(tag, className) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return element;
}
function badge(element, kind, label) {
  element.className = `badge ${kind}`;
  text(element, label);
}

// Fills a table; rows stay, so that a selection survives. A cell is text, {text, kind} for a badge, or {text, click} for a
// button.
function fill(table, rows) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] ?? body.insertRow();
    cells.forEach((value, index) => {
      let cell = row.cells[index];
      if (!cell) {
        cell = row.insertCell();
        cell.className = heads[index].className;
        cell.dataset.label = heads[index].textContent;
        cell.append(create("span"));
      }
      if (value.click && cell.firstChild.tagName !== "BUTTON") {
        cell.firstChild.replaceWith(create("button"));
        cell.firstChild.type = "button";
      }
      const content = cell.firstChild;
      if (value.click) {
        text(content, value.text);
        content.onclick = () => value.click(content);
      } else if (typeof value === "string") text(content, value);
      else if (value.kind) badge(content, value.kind, value.text);
      else {
        content.className = value.className;
        text(content, value.text);
      }
    });
  });
  table.hidden = rows.length === 0;
  const empty = table.parentElement.querySelector(".empty");
  if (empty) empty.hidden = rows.length > 0;
}

function describe(list, pairs) {
  pairs.forEach(([name, value], at) => {
    let [term, detail] = [list.children[2 * at], list.children[2 * at + 1]];
    if (!term) {
      [term, detail] = [create("dt"), create("dd")];
      list.append(term, detail);
    }
    text(term, name);
    text(detail, value);
  });
  while (list.children.length > 2 * pairs.length) list.lastChild.remove();
}

// A chart of lines over the last two minutes.
class Chart {
  constructor(holder, series, format) {
    this.series = series;
    this.format = format;
    const plot = create("div", "plot");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    for (const y of [0, 50, 100]) {
      const line = document.createElementNS(SVG, "line");
      for (const [name, value] of [["x1", 0], ["x2", HISTORY - 1], ["y1", y], ["y2", y]]) line.setAttribute(name, value);
      svg.append(line);
    }
    this.top = create("span", "top");
    const axis = create("div", "axis");
    const [from, to] = [create("span"), create("span")];
    from.textContent = "2 minutes ago";
    to.textContent = "now";
    axis.append(from, to);
    const legend = create("div", "legend");
    this.lines = series.map(([label, className]) => {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("class", className);
      svg.append(line);
      const entry = create("span", className);
      const name = create("span");
      name.textContent = label;
      const value = create("b");
      entry.append(create("i"), name, value);
      legend.append(entry);
      return { line, value };
    });
    plot.append(svg, this.top);
    holder.append(plot, axis, legend);
  }

  // `samples` are arrays of one value for each series, the latest last; null is a gap.
  draw(samples) {
    const highest = Math.max(...samples.flat().filter((value) => value !== null), 0);
    const top = ceiling(highest);
    text(this.top, highest > 0 ? this.format(top) : "");
    const first = HISTORY - samples.length;
    this.lines.forEach(({ line, value }, index) => {
      const points = samples.map((sample, at) =>
        sample[index] === null ? null : `${first + at},${(100 - (100 * sample[index]) / top).toFixed(2)}`);
      line.setAttribute("points", points.filter((point) => point !== null).join(" "));
      const last = samples.length ? samples[samples.length - 1][index] : null;
      text(value, last === null ? "–" : this.format(last));
    });
  }
}

// The next round number that is not less.
function ceiling(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10].map((factor) => factor * unit).find((bound) => bound >= value * 0.999) ?? 10 * unit;
}

// The quantile of a histogram, interpolated in its bucket; null if it is empty.
function quantile(bounds, counts, share) {
  const total = counts.reduce((a, b) => a + b, 0);
  if (total === 0) return null;
  let below = 0;
  for (let at = 0; at < counts.length; at++) {
    if (counts[at] > 0 && below + counts[at] >= share * total) {
      if (at === bounds.length) return bounds[at - 1];
      const low = at === 0 ? 0 : bounds[at - 1];
      return low + (bounds[at] - low) * ((share * total - below) / counts[at]);
    }
    below += counts[at];
  }
  return bounds[bounds.length - 1];
}

// What is shown

const classes = ["2xx", "3xx", "4xx", "5xx"];
const responses = new Chart($("chart-responses"), classes.map((name, at) => [name, ["s4", "s1", "s2", "s3"][at]]), rate);
const latency = new Chart($("chart-latency"), [["p50", "s1"], ["p99", "s5"]], seconds);
let states = [];
let samples = [];

const throttled = (state) => {
  const own = state.throttle?.decisions;
  return own ? own.unknown + own.missing + own.rejected : 0;
};
const refused = (state) => state.limits.reduce((all, limit) => all + limit.refused, 0) + throttled(state);

function update(state) {
  const before = states[states.length - 1];
  // A gateway that was restarted counts from zero.
  if (before && state.uptime_ms < before.uptime_ms) [states, samples] = [[], []];
  // The first event after a pause may repeat the last one.
  if (before && state.uptime_ms === before.uptime_ms) return;
  states.push(state);
  if (states.length > LATENCY_SAMPLES + 1) states.shift();
  const previous = states[states.length - 2];
  const elapsed = previous ? (state.uptime_ms - previous.uptime_ms) / 1e3 : 0;
  const perSecond = (read) => (previous ? Math.max(0, read(state) - read(previous)) / elapsed : 0);
  const oldest = states[0].requests.latency.counts;
  const { bounds_seconds: bounds, counts } = state.requests.latency;
  const recent = counts.map((value, at) => Math.max(0, value - oldest[at]));
  const [p50, p99] = [quantile(bounds, recent, 0.5), quantile(bounds, recent, 0.99)];
  if (previous) {
    samples.push({ responses: classes.map((name) => perSecond((own) => own.requests.responses[name])), latency: [p50, p99] });
    if (samples.length > HISTORY) samples.shift();
  }
  text($("facts"), `version ${state.version}, up ${duration(state.uptime_ms)}`);
  const total = sum(state.requests.responses);
  text($("rate"), rate(perSecond((own) => sum(own.requests.responses))));
  text($("total"), count(total));
  text($("p50"), seconds(p50));
  text($("p99"), seconds(p99));
  text($("refused-rate"), rate(perSecond(refused)));
  text($("refused-total"), count(refused(state)));
  text($("error-rate"), rate(perSecond((own) => own.requests.responses["5xx"])));
  text($("error-total"), count(state.requests.responses["5xx"]));
  text($("open"), count(state.connections.open));
  text($("accepted"), count(state.connections.accepted));
  text($("tunnels"), count(state.connections.tunnels));
  responses.draw(samples.map((sample) => sample.responses));
  latency.draw(samples.map((sample) => sample.latency));
  showLimits(state, perSecond);
  showCosts(state, perSecond);
  showOverrides(state);
  showBlocks();
  showThrottle(state.throttle);
  showUpstreams(state);
  showStore(state.store, perSecond);
  showConfiguration(state);
}

function showLimits(state, perSecond) {
  fill($("limits"), state.limits.map((limit) => {
    const read = (own) => own.limits.find((other) => other.name === limit.name)?.refused ?? limit.refused;
    return [limit.name, rate(perSecond(read)), count(limit.refused), count(limit.admitted), count(limit.would_refuse)];
  }));
  fill($("callers"), state.refused_callers.map((caller) => [
    caller.consumer ?? { text: caller.hash, className: "mono" },
    caller.limit,
    caller.error > 0 ? `≤ ${count(caller.refused)}` : count(caller.refused),
  ]));
  const minutes = state.refused_window_ms / 60_000;
  text($("window"), `In the last ${minutes} to ${2 * minutes} minutes. The hash finds a caller: /api/limits/NAME?hash=HASH`);
}

function showCosts(state, perSecond) {
  const metered = state.limits.filter((limit) => limit.settled);
  $("costs-card").hidden = metered.length === 0;
  fill($("costs"), metered.map(({ name, settled: own }) => {
    const read = (other) => other.limits.find((limit) => limit.name === name)?.settled?.settled ?? own.settled;
    return [name, rate(perSecond(read)), count(own.reserved), count(own.settled), count(own.overspent), count(own.unreadable)];
  }));
}

function showThrottle(own) {
  $("throttle").hidden = !own;
  if (!own) return;
  if (own.throttling) badge($("throttle-state"), "bad", "Throttling: new users are refused");
  else if (own.mode === "off") badge($("throttle-state"), "warn", "Off");
  else badge($("throttle-state"), "good", "All users are admitted");
  for (const button of document.querySelectorAll("[data-mode]")) {
    button.setAttribute("aria-pressed", String(button.dataset.mode === own.mode));
  }
  const scale = Math.max(own.max_active * 1.25, own.active);
  const meter = $("meter");
  meter.classList.toggle("over", own.active > own.max_active);
  meter.setAttribute("aria-valuemax", scale);
  meter.setAttribute("aria-valuenow", own.active);
  meter.querySelector(".fill").style.width = `${(100 * own.active) / scale}%`;
  meter.querySelector("[data-mark=resume]").style.left = `${(100 * own.resume_below) / scale}%`;
  meter.querySelector("[data-mark=max]").style.left = `${(100 * own.max_active) / scale}%`;
  const estimate = own.saturated ? "too many to estimate" : `${count(own.active)} ± ${count(own.error)}`;
  const { known, unknown, missing, rejected } = own.decisions;
  text($("throttle-warning"), [
    own.over_capacity && `More tokens a minute than the filters can hold: ${percent(own.false_positive)} of unknown tokens pass as active, ${percent(own.max_false_positive)} are configured.`,
    own.requests_with_token === 0 && own.requests_without_token >= 100 && "No request carried a token: users are recognised by client.token.",
  ].filter(Boolean).join(" "));
  text($("throttle-text"), `${estimate} active. Throttling above ${count(own.max_active)}, until below ${count(own.resume_below)}. ` +
    `While throttling: ${count(known)} admitted, ${count(unknown + missing + rejected)} refused. ` +
    `${percent(own.false_positive)} of unknown tokens pass as active; the filters take ${mib(own.memory_bytes)} of at most ${mib(own.max_memory_bytes)} MiB.`);
  showRoom(own.waiting_room);
}

function showRoom(room) {
  $("room").hidden = !room;
  if (!room) return;
  const first = room.waiting > 0 ? `, the first of them for ${count(room.first_waits_seconds)} s` : "";
  text($("room-text"), `Waiting room: ${count(room.waiting)} wait${first}. ${count(room.entering)} enter.`);
  for (const button of document.querySelectorAll("[data-room]")) {
    button.setAttribute("aria-pressed", String(button.dataset.room === room.state));
  }
}

// The counts of requests that found no place, by priority.
const shedText = (shed) => Object.entries(shed).map(([priority, refused]) => `${count(refused)} of priority ${priority}`).join(", ");

function showUpstreams(state) {
  $("upstreams-card").hidden = state.upstreams.length === 0;
  fill($("upstreams"), state.upstreams.map((upstream) => [
    upstream.name,
    count(upstream.pending),
    count(upstream.overloaded),
    shedText(upstream.shed) || "–",
    count(upstream.refused_down),
    count(upstream.retries),
  ]));
  const kinds = { up: "good", slow_start: "warn" };
  fill($("targets"), state.upstreams.flatMap((upstream) => upstream.targets.map((target) => [
    target.url,
    upstream.name,
    { kind: kinds[target.status] ?? "bad", text: target.status.replaceAll("_", " ") },
    target.latency_ms === null ? "–" : seconds(target.latency_ms / 1e3),
    count(target.in_flight),
    count(target.requests),
    count(sum(target.failures)),
  ])));
  const omitted = state.omitted_upstreams;
  text($("omitted"), omitted > 0 ? `${count(omitted)} more upstreams: /api/upstreams` : "");
}

function showStore(store, perSecond) {
  const isRedis = store.kind === "redis";
  const pairs = [
    ["Kept in", isRedis ? "Redis" : "this process"],
    ["Decided requests", count(store.requests)],
    ["Charged requests", count(store.charged_requests)],
  ];
  if (isRedis) {
    pairs.push(
      ["Calls to Redis", `${count(store.redis_calls)} (${rate(perSecond((own) => own.store.redis_calls))} per second)`],
      ["From leased units", count(store.leased_charges)],
      ["Without a decision", count(sum(store.failures))],
      ["Gateways", count(store.gateways)],
      ["Workers without Redis", count(store.workers_without_redis)],
    );
  }
  describe($("store"), pairs);
  fill($("servers"), store.servers.map((server) => {
    const read = (own) => own.store.servers.find((other) => other.name === server.name)?.calls ?? server.calls;
    return [
      server.name,
      { kind: server.breaker === "closed" ? "good" : "bad", text: server.breaker },
      rate(perSecond(read)),
      count(server.calls),
    ];
  }));
}

// The version of the overrides that are shown, with the number that have not ended: both may change.
let shownOverrides = "";

async function showOverrides(state) {
  const { place, version, in_force: inForce } = state.overrides;
  $("override-form").hidden = place === "none";
  text($("override-place"), place === "none"
    ? "Overrides cannot be set: this gateway has neither store.redis nor overrides.file."
    : `Kept in ${place === "redis" ? "Redis, for all gateways" : "the file of overrides.file"}.`);
  const limits = $("override-limits");
  const names = state.limits.map((limit) => limit.name);
  if ([...limits.children].map((option) => option.value).join() !== names.join()) {
    limits.replaceChildren(...names.map((name) => Object.assign(create("option"), { value: name })));
  }
  const shown = `${version} ${inForce}`;
  if (shown === shownOverrides) return;
  shownOverrides = shown;
  try {
    const response = await fetch("/api/overrides?count=200", { headers: headers() });
    if (!response.ok) throw new Error(`status ${response.status}`);
    listOverrides(await response.json());
  } catch (error) {
    shownOverrides = "";
    console.warn(error);
  }
}

function listOverrides({ overrides, total }) {
  fill($("overrides"), overrides.map((own) => [
    own.limit,
    own.consumer !== null ? `consumer ${own.consumer}` : own.plan !== null ? `plan ${own.plan}` : `key ${own.hash}`,
    own.quota,
    own.until_ms === null ? "no end" : new Date(own.until_ms).toLocaleString(),
    own.reason,
    own.in_force ? { kind: "good", text: "in force" } : { kind: "warn", text: own.fault ?? "ended" },
    { text: "Lift", click: (button) => lift(own.id, button) },
  ]));
  text($("overrides-omitted"), total > overrides.length ? `${count(total - overrides.length)} more: /api/overrides` : "");
}

// When the blocks are asked for again, in ms.
let blocksDue = 0;

async function showBlocks() {
  if (Date.now() < blocksDue) return;
  blocksDue = Date.now() + 3000;
  try {
    const response = await fetch("/api/blocks?count=200", { headers: headers() });
    if (!response.ok) throw new Error(`status ${response.status}`);
    listBlocks(await response.json());
  } catch (error) {
    console.warn(error);
  }
}

function listBlocks({ blocks, total }) {
  fill($("blocks"), blocks.map((own) => [
    own.limit,
    own.hash,
    new Date(own.until_ms).toLocaleString(),
    own.enforce ? { kind: "warn", text: "blocked" } : { kind: "good", text: "only reported" },
    { text: "Lift", click: (button) => liftBlock(own, button) },
  ]));
  text($("blocks-omitted"), total > blocks.length ? `${count(total - blocks.length)} more: /api/blocks` : "");
}

async function liftBlock({ limit, hash }, button) {
  button.disabled = true;
  try {
    const response = await fetch(`/api/blocks/${encodeURIComponent(limit)}?hash=${hash}`, { method: "DELETE", headers: headers() });
    text($("block-error"), response.ok ? "" : (await response.json()).detail);
    blocksDue = 0;
    await showBlocks();
  } catch {
    text($("block-error"), "The gateway does not answer.");
  } finally {
    button.disabled = false;
  }
}

// Sends a change of the overrides, and shows the error if it was refused.
async function changeOverrides(path, options, button) {
  button.disabled = true;
  try {
    const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
    const answer = response.status === 204 ? {} : await response.json();
    text($("override-error"), response.ok ? "" : [answer.detail, ...(answer.faults ?? [])].join(" "));
    text($("override-note"), (response.ok && answer.notes) ? answer.notes.join(" ") : "");
    shownOverrides = "";
    return response.ok;
  } catch {
    text($("override-error"), "The gateway does not answer.");
    return false;
  } finally {
    button.disabled = false;
  }
}

const lift = (id, button) => changeOverrides(`/api/overrides/${id}`, { method: "DELETE" }, button);

async function setOverride(form) {
  const value = (id) => $(`override-${id}`).value.trim();
  const body = { limit: value("limit"), [value("kind")]: value("target"), reason: value("reason") };
  body.quota = /^[0-9]+$/.test(value("quota")) ? Number(value("quota")) : value("quota");
  if (value("until")) body.until = value("until");
  const options = { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  if (await changeOverrides("/api/overrides", options, form.querySelector("button"))) form.reset();
}

function showConfiguration(state) {
  const own = state.configuration;
  const last = own.last_reload;
  const when = last && `${duration(Math.max(0, state.now_ms - last.at_ms))} ago`;
  describe($("configuration"), [
    ["Generation", count(own.generation)],
    ["Reloads", `${count(own.reloads_applied)} applied, ${count(own.reloads_faulty)} with faults`],
    ["Last reload", !last ? "none" : last.faults.length ? `faulty, ${when}` : `applied, ${when}`],
  ]);
  $("faults").hidden = !last?.faults.length;
  text($("faults"), last ? last.faults.join("\n\n") : "");
}

// The connection

const KEY = "tidegate-token";
let abort = null;

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}
function show(state, label) {
  $("connection").dataset.state = state;
  text($("connection"), label);
}
function askForToken(message) {
  sessionStorage.removeItem(KEY);
  $("main").hidden = true;
  $("login").hidden = false;
  text($("login-error"), message);
  show("wait", "Token needed");
  $("token").focus();
}

// A header carries no other characters, and the gateway's token is of visible ASCII.
const isToken = (token) => /^[\x21-\x7e]+$/.test(token);

// Reads events until the stream ends. Returns false if a token is needed.
async function listen(signal) {
  if (!isToken(sessionStorage.getItem(KEY) ?? "none")) {
    askForToken("This is no token: a token has visible ASCII characters only.");
    return false;
  }
  const response = await fetch("/api/events", { headers: headers(), signal });
  if (response.status === 401) {
    askForToken(sessionStorage.getItem(KEY) ? "The token is wrong." : "");
    return false;
  }
  if (!response.ok) throw new Error((await response.json()).detail);
  $("login").hidden = true;
  $("main").hidden = false;
  show("live", "Live");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return true;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) if (event.startsWith("data: ")) update(JSON.parse(event.slice(6)));
  }
}

async function run() {
  abort?.abort();
  const own = (abort = new AbortController());
  for (let pause = 1; !own.signal.aborted; pause = Math.min(pause * 2, 10)) {
    try {
      if (!(await listen(own.signal))) return;
      pause = 1;
    } catch (error) {
      if (own.signal.aborted) return;
      console.warn(error);
    }
    show("lost", "Disconnected, trying again");
    await new Promise((resolve) => setTimeout(resolve, pause * 1e3));
  }
}

async function setThrottle(change) {
  const buttons = document.querySelectorAll("[data-mode], [data-room]");
  for (const button of buttons) button.disabled = true;
  try {
    const response = await fetch("/api/throttle", {
      method: "PUT",
      headers: { ...headers(), "Content-Type": "application/json" },
      body: JSON.stringify(change),
    });
    const body = await response.json();
    text($("throttle-error"), response.ok ? "" : body.detail);
    if (response.ok) showThrottle({ ...states[states.length - 1].throttle, ...body });
  } catch {
    text($("throttle-error"), "The gateway does not answer.");
  }
  for (const button of buttons) button.disabled = false;
}

for (const button of document.querySelectorAll("[data-mode]")) {
  button.addEventListener("click", () => setThrottle({ mode: button.dataset.mode }));
}
for (const button of document.querySelectorAll("[data-room]")) {
  button.addEventListener("click", () => setThrottle({ waiting_room: button.dataset.room }));
}
$("override-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setOverride(event.target);
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  $("token").value = "";
  run();
});
// A hidden page costs the gateway nothing.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) run();
  else if (abort) {
    abort.abort();
    show("wait", "Paused");
  }
});
run();
