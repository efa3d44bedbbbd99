/** Joins the parts: readings come in once a second, views draw them, links choose the view. */

import { byId, setText } from "./dom.js";
import { History } from "./history.js";
import { keepKey } from "./keys.js";
import { latestPoint, LiveView } from "./live.js";
import { Playground } from "./playground.js";
import { KeyWanted, poll } from "./poll.js";
import { keyWanted, silent, verdict } from "./verdict.js";

const LONGEST_WINDOW_S = 900;

const history = new History(LONGEST_WINDOW_S);
const points = [];
const live = new LiveView();
const playground = new Playground();
let heardAt = null;

function windowS() {
  return Number(byId("window").querySelector("input:checked").value);
}

function say({ tone, head, detail, figure = "" }) {
  byId("verdict").dataset.tone = tone;
  setText(byId("verdict-head"), head);
  setText(byId("verdict-figure"), figure);
  setText(byId("verdict-detail"), detail);
}

function draw() {
  if (history.size === 0) return;
  live.draw(history, points, windowS());
  say(verdict(history.start(windowS()), history.latest));
}

function onReading(reading) {
  heardAt = performance.now();
  if (history.add(reading)) keepPoint(reading);
  setText(byId("model"), reading.model);
  setText(byId("version"), `specdec ${reading.version}`);
  playground.offerDrafters(reading.drafters.map(({ name }) => name));
  document.body.classList.remove("silent");
  byId("operator").hidden = true;
  draw();
}

function keepPoint(reading) {
  // The first reading of a new service: what was drawn belongs to the old one.
  if (history.size === 1) points.length = 0;
  points.push(latestPoint(history));
  while (points[0].time_s < reading.time_s - LONGEST_WINDOW_S) points.shift();
}

function onSilence(error) {
  document.body.classList.add("silent");
  if (error instanceof KeyWanted) {
    byId("operator").hidden = false;
    say(keyWanted(error.status));
    return;
  }
  say(silent(heardAt === null ? null : (performance.now() - heardAt) / 1000));
}

function showView() {
  const name = location.hash === "#playground" ? "playground" : "live";
  for (const each of ["live", "playground"]) byId(each).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

byId("operator").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("operator-key").value);
});
byId("window").addEventListener("change", draw);
addEventListener("hashchange", () => {
  showView();
  // The browser went to the view's own top: the verdict above belongs to both.
  scrollTo(0, 0);
});
showView();
poll(onReading, onSilence);
