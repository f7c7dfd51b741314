// The servers of the fleet, and what each of them runs.

import { h } from "./dom.js";
import { badge, glyph } from "./state_marks.js";
import { ago, duration, plural } from "./words.js";

function item(feed) {
  return h(
    "li",
    { "data-key": feed.id },
    h(
      "a",
      { href: `#/changefeed/${encodeURIComponent(feed.id)}` },
      glyph(feed.state),
      h("span", { class: "hidden" }, `${feed.state}: `),
      feed.id,
    ),
    h("span", { class: "number" }, duration(feed.lag_ms)),
  );
}

function server(one, overview, now) {
  const own = overview.changefeeds.filter((f) => f.owner === one.address);
  const here = one.address === overview.server.address;
  return h(
    "section",
    { class: "card server", "data-key": `${one.address} ${one.pid}`, "aria-label": one.address },
    h("h2", {}, one.address, here && h("small", {}, " this server")),
    h(
      "p",
      { class: "muted" },
      `${one.host}, process ${one.pid}; seen ${ago(one.seen_at, now)}; runs ${plural(one.changefeeds, "changefeed")}`,
    ),
    h("ul", { class: "owned" }, own.map(item)),
  );
}

/** Return the page of the servers. */
export function serversView({ overview, now }) {
  const waiting = overview.changefeeds.filter(
    (f) => !f.owner && ["pending", "normal", "warning"].includes(f.state),
  );
  return h(
    "div",
    { class: "page", "data-key": "servers" },
    h("h1", {}, "Servers"),
    h(
      "p",
      { class: "muted" },
      `This page comes from ${overview.server.address}, version ${overview.server.version}, which started ${ago(overview.server.started_at, now)}.`,
    ),
    overview.servers.length === 0 &&
      h("p", { class: "card blank" }, "No server has announced itself."),
    h(
      "div",
      { class: "servers" },
      overview.servers.map((one) => server(one, overview, now)),
    ),
    waiting.length > 0 &&
      h(
        "section",
        { class: "card", "aria-label": "Waiting" },
        h("h2", {}, "Waiting for a server"),
        h(
          "ul",
          { class: "owned" },
          waiting.map((f) =>
            h(
              "li",
              { "data-key": f.id },
              h("a", { href: `#/changefeed/${encodeURIComponent(f.id)}` }, f.id),
              badge(f.state),
            ),
          ),
        ),
      ),
  );
}
