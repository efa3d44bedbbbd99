/** Making and changing elements. Data only ever becomes text, never markup. */

/** The element with this id, which index.html has. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`index.html has no #${id}`);
  return found;
}

/** A new element with attributes (`text` is its content) and children. */
export function element(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Set the text of an element, and touch nothing where it says so already. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
