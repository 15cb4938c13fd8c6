/* The Pipelines pages: reads one JSON document each second and shows it. All text goes in as text, never as HTML. */
(function () {
  "use strict";

  const page = document.getElementById("pipelines");
  const SVG = "http://www.w3.org/2000/svg";
  const INTERVAL_MS = 1000;
  const BOX = { width: 230, height: 118, across: 56, along: 22, margin: 4 };
  const NARROW_PX = 620;

  const TONES = {
    running: "busy", draining: "busy", publishing: "busy", finished: "good", failed: "bad",
    cancelled: "warn", suspended: "warn",
    "at work": "busy", "no owner": "bad", "waits for a full inbox": "warn", "its stage is paused": "warn", done: "good",
    alive: "good", silent: "warn", dead: "bad",
  };

  function byId(id) {
    return document.getElementById(id);
  }

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function shape(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function count(number) {
    return number.toLocaleString("en-US");
  }

  function rate(number) {
    return number.toLocaleString("en-US", { maximumFractionDigits: number < 10 ? 1 : 0 });
  }

  function age(ms) {
    if (ms < 10000) return (ms / 1000).toFixed(1) + " s";
    if (ms < 120000) return Math.round(ms / 1000) + " s";
    if (ms < 7200000) return Math.round(ms / 60000) + " min";
    return Math.round(ms / 3600000) + " h";
  }

  function lag(row) {
    if (!row.backlog) return "none";
    return (row.is_lag_least ? "over " : "") + age(row.lag_ms);
  }

  function instant(ms) {
    return new Date(ms).toLocaleString();
  }

  function state(word) {
    const made = element("span", word, "pl-state");
    made.dataset.tone = TONES[word] || "";
    return made;
  }

  function cell(content, className) {
    const made = element("td", undefined, className);
    made.append(content);
    return made;
  }

  function head(content) {
    const made = element("th");
    made.scope = "row";
    made.append(content);
    return made;
  }

  function fill(table, rows, emptyText) {
    const body = byId(table).tBodies[0];
    const columns = byId(table).tHead.rows[0].cells.length;
    if (!rows.length) {
      const none = cell(emptyText);
      none.colSpan = columns;
      rows = [[none]];
    }
    body.replaceChildren(...rows.map((cells) => {
      const row = element("tr");
      row.append(...cells);
      return row;
    }));
  }

  function number(text) {
    return cell(text, "pl-number");
  }

  /* The list of jobs */

  function showJobs(data) {
    const left = data.total - data.jobs.length - data.unreadable.length;
    byId("summary").textContent = data.total + (data.total === 1 ? " job" : " jobs") +
      (left > 0 ? ", the newest are shown" : "") +
      (data.unreadable.length ? "; made by another version: " + data.unreadable.join(", ") : "");
    fill("jobs", data.jobs.map((job) => {
      const link = element("a", job.job);
      link.href = page.dataset.pages + "/" + encodeURIComponent(job.job);
      return [head(link), cell(state(job.state)), cell(job.pipeline), cell(instant(job.made_at_ms)),
        cell(instant(job.changed_at_ms)), cell(job.reason, "pl-long")];
    }), "No jobs. celeriac run makes one.");
  }

  /* One job */

  function showJob(data) {
    const sign = byId("state");
    sign.textContent = data.state;
    sign.dataset.tone = TONES[data.state] || "";
    byId("summary").textContent = [
      data.reason, "pipeline " + data.pipeline, "leader " + (data.leader || "none"), "made " + instant(data.made_at_ms),
      data.is_gate_closed ? "Redis is nearly full: no input is taken" : "",
    ].filter(Boolean).join(" · ");
    const alarms = byId("alarms");
    alarms.hidden = !data.alarms.length;
    const wrong = data.alarms.length ? "Books do not balance: " + data.alarms.join("; ") + "." : "";
    if (alarms.textContent !== wrong) alarms.textContent = wrong;
    drawGraph(data);
    showStages(data);
    showPartitions(data);
    showWorkers(data);
    showLetters(data);
  }

  function showStages(data) {
    fill("stages", data.stages.map((stage) => [
      head(stage.index + " " + stage.name), number(rate(stage.taken_rate)), number(rate(stage.emitted_rate)),
      number(count(stage.backlog)), number(lag(stage)), number(count(stage.taken)), number(count(stage.emitted)),
      number(count(stage.filtered + stage.duplicate + stage.late + stage.skipped)), number(count(stage.dead)),
      number(stage.done + " of " + stage.partitions),
    ]), "No stages.");
  }

  function showPartitions(data) {
    fill("partitions", data.partitions.map((part) => [
      head(part.name), cell(state(part.state)), cell(part.owner || "none"), number(part.term),
      cell(element("code", part.token || "none")), number(rate(part.taken_rate)), number(count(part.backlog)),
      number(lag(part)), cell(element("code", part.position)), number(part.tickets), number(count(part.dead)),
    ]), "No partitions.");
    const hidden = data.partitions_total - data.partitions.length;
    byId("partitions-note").textContent = hidden ? "And " + count(hidden) + " more." : "";
  }

  function showWorkers(data) {
    fill("workers", data.workers.map((worker) => [
      head(worker.name), cell(state(worker.state)), number(age(worker.age_seconds * 1000) + " ago"),
      number(worker.partitions), cell(element("code", worker.incarnation)),
    ]), "No worker has been heard of.");
  }

  let lettersShown = "";

  function showLetters(data) {
    const hidden = data.dead_letters - data.letters.length;
    byId("letters-note").textContent = !data.dead_letters ? "None."
      : count(data.dead_letters) + " given up" + (data.held ? ", " + count(data.held) + " held behind" : "") + (hidden > 0 ? "; the oldest " + data.letters.length + " are shown." : ".");
    const ids = data.letters.map((letter) => letter.id).join(" ");
    if (ids === lettersShown) return; // else an opened traceback would close each second
    lettersShown = ids;
    byId("letters").replaceChildren(...data.letters.map((letter) => {
      const item = element("li");
      const made = element("time", instant(letter.at_ms));
      made.dateTime = new Date(letter.at_ms).toISOString();
      item.append(element("strong", letter.operator), " in " + letter.partition + ", ", made,
        element("div", letter.error.split("\n")[0]));
      if (letter.traceback) {
        const details = element("details");
        details.append(element("summary", "Traceback"), element("pre", letter.traceback));
        item.append(details);
      }
      return item;
    }));
  }

  /* The drawing: columns from left to right, or rows from top to bottom where there is no width for that */

  function tone(stage) {
    if (stage.unowned && stage.done < stage.partitions) return "bad";
    if (stage.dead || stage.waiting || stage.is_paused) return "warn";
    if (stage.done === stage.partitions) return "good";
    return stage.taken_rate > 0 || stage.backlog ? "busy" : "";
  }

  function place(stage, isNarrow) {
    const along = isNarrow ? stage.row : stage.column;
    const across = isNarrow ? stage.column : stage.row;
    return {
      x: BOX.margin + along * (BOX.width + (isNarrow ? BOX.along : BOX.across)),
      y: BOX.margin + across * (BOX.height + (isNarrow ? BOX.across : BOX.along)),
    };
  }

  function cut(text, most) {
    return text.length > most ? text.slice(0, most - 1) + "…" : text;
  }

  function sentence(stage) {
    return "Stage " + stage.index + " " + stage.name +
      (stage.operators.length ? " with " + stage.operators.join(", ") : "") +
      (stage.sinks.length ? ", sinks " + stage.sinks.join(", ") : "") +
      ": in " + rate(stage.taken_rate) + " a second, out " + rate(stage.emitted_rate) + " a second, backlog " +
      count(stage.backlog) + ", lag " + lag(stage) + ", " + stage.done + " of " + stage.partitions + " partitions done";
  }

  function stageBox(stage, at) {
    const group = shape("g", { transform: "translate(" + at.x + "," + at.y + ")" });
    group.append(
      shape("title", {}, sentence(stage)),
      shape("rect", { class: "box", width: BOX.width, height: BOX.height, rx: 10, "data-tone": tone(stage) }),
      shape("text", { class: "name", x: 14, y: 24 }, cut(stage.index + " " + stage.name, 26)),
      shape("text", { class: "quiet", x: 14, y: 42 },
        cut(stage.operators.concat(stage.sinks.map((name) => "→ " + name)).join(" · ") || "no operators", 34)),
      shape("text", { x: 14, y: 64 }, rate(stage.taken_rate) + " in/s, " + rate(stage.emitted_rate) + " out/s"),
      shape("text", { x: 14, y: 84 }, "backlog " + count(stage.backlog) + ", lag " + lag(stage)),
      shape("text", { class: "quiet", x: 14, y: 104 }, (stage.is_paused ? "paused, " : "") + stage.done + " of " +
        stage.partitions + " partitions done" +
        (stage.dead ? ", " + count(stage.dead) + " dead" : stage.waiting ? ", " + stage.waiting + " wait" : "")),
    );
    return group;
  }

  function edgePath(from, to, isNarrow) {
    const half = { width: BOX.width / 2, height: BOX.height / 2 };
    if (isNarrow) {
      const a = { x: from.x + half.width, y: from.y + BOX.height };
      const b = { x: to.x + half.width, y: to.y - 7 };
      const middle = (a.y + b.y) / 2;
      return `M${a.x},${a.y} C${a.x},${middle} ${b.x},${middle} ${b.x},${b.y}`;
    }
    const a = { x: from.x + BOX.width, y: from.y + half.height };
    const b = { x: to.x - 7, y: to.y + half.height };
    const middle = (a.x + b.x) / 2;
    return `M${a.x},${a.y} C${middle},${a.y} ${middle},${b.y} ${b.x},${b.y}`;
  }

  function drawGraph(data) {
    const holder = byId("graph");
    const isNarrow = holder.clientWidth < NARROW_PX;
    const places = data.stages.map((stage) => place(stage, isNarrow));
    const width = Math.max(...places.map((at) => at.x)) + BOX.width + BOX.margin;
    const height = Math.max(...places.map((at) => at.y)) + BOX.height + BOX.margin;
    const svg = shape("svg", { width: width, height: height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-labelledby": "graph-title graph-words" });
    const marker = shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 1, refY: 4, markerWidth: 7, markerHeight: 7,
      orient: "auto" });
    marker.append(shape("path", { d: "M0,0 L8,4 L0,8 z" }));
    const definitions = shape("defs", {});
    definitions.append(marker);
    const edges = data.edges.map((edge) => shape("path", {
      class: "edge", "marker-end": "url(#arrow)", d: edgePath(places[edge.from], places[edge.to], isNarrow),
    }));
    svg.append(shape("title", { id: "graph-title" }, "Stages of " + data.pipeline),
      shape("desc", { id: "graph-words" }, data.stages.map(sentence).join(". ")),
      definitions, ...edges, ...data.stages.map((stage, index) => stageBox(stage, places[index])));
    holder.replaceChildren(svg);
  }

  /* Reading, again and again, while the page is in sight */

  let seenAt = 0;

  function complain(text) {
    const trouble = byId("trouble");
    trouble.hidden = !text;
    if (trouble.textContent !== text) trouble.textContent = text;
  }

  function since() {
    return seenAt ? " What is shown is of " + new Date(seenAt).toLocaleTimeString() + "." : "";
  }

  async function read() {
    let answer;
    try {
      answer = await fetch(page.dataset.source, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      const data = await answer.json();
      if (!answer.ok) {
        complain(data.error + (data.hint ? " (" + data.hint + ")." : ".") + since());
        return;
      }
      seenAt = Date.now();
      complain("");
      if (page.dataset.kind === "jobs") showJobs(data);
      else showJob(data);
    } catch (error) {
      complain((answer ? "Flower answered " + answer.status + "." : "Flower does not answer.") + since());
      if (answer && answer.ok) throw error; // a fault of this page: let the console tell
    }
  }

  async function loop() {
    try {
      if (!document.hidden) await read();
    } finally {
      window.setTimeout(loop, INTERVAL_MS);
    }
  }

  loop();
})();
