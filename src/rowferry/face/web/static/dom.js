// Making elements, and changing a shown tree into a new one without losing focus or hover.

const SVG = "http://www.w3.org/2000/svg";

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "points") node.points_ = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** Return an element. Text is always text: nothing is ever read as HTML. */
export function h(tag, attributes, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** Return an element of SVG. */
export function s(tag, attributes, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

const keyOf = (node) => node.dataset?.key;

function fits(old, fresh) {
  return old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function syncAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    const kept = name === "open" && old.nodeName === "DETAILS";
    if (!kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function syncChildren(old, fresh) {
  const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean));
  for (const node of [...old.childNodes]) {
    if (keyOf(node) && !wanted.has(keyOf(node))) node.remove();
  }
  const keyed = new Map();
  for (const node of old.childNodes) if (keyOf(node)) keyed.set(keyOf(node), node);
  let at = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const key = keyOf(node);
    const match = key ? keyed.get(key) : at && !keyOf(at) && fits(at, node) ? at : null;
    if (!match) {
      old.insertBefore(node, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    morph(match, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Change `old` into `fresh` where they differ. What has `data-keep` stays as it is. */
export function morph(old, fresh) {
  if (!fits(old, fresh)) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else if (old.dataset?.keep === undefined) {
    old.points_ = fresh.points_;
    syncAttributes(old, fresh);
    syncChildren(old, fresh);
  }
}

/** Show `view` as the only child of `place`. The focus stays where it was, also in moved rows. */
export function show(place, view) {
  const focused = document.activeElement;
  if (place.firstElementChild) morph(place.firstElementChild, view);
  else place.append(view);
  if (focused !== document.activeElement && place.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}
