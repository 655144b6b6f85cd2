// Elements, and text of others within them: set as text, with what would be obeyed written out.

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Text with marks of direction, control characters and the like written out. */
export function printable(text: string): string {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (letter) => `\\u${letter.codePointAt(0)!.toString(16).padStart(4, "0")}`);
}

export function shortened(text: string, limit: number): string {
  const shown = printable(text.slice(0, limit + 1));
  return shown.length <= limit ? shown : `${shown.slice(0, limit - 3)}...`;
}

/** Text of others, in an element of its own direction. */
export function quoted(text: string, limit = 300): HTMLElement {
  return element("bdi", {}, shortened(text, limit));
}

export function section(id: string): HTMLElement {
  return document.getElementById(id)!;
}

export function button(text: string, act: () => void): HTMLButtonElement {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", act);
  return made;
}

/** Call something when an element comes into the window; tells whether it is there. */
export function whenSeen(seen: Element, call: () => void): () => boolean {
  let isSeen = false;
  const observer = new IntersectionObserver((entries) => {
    isSeen = entries[entries.length - 1].isIntersecting;
    if (isSeen) call();
  });
  observer.observe(seen);
  // all of a page is printed, also what is beyond the window
  addEventListener("beforeprint", () => {
    isSeen = true;
    call();
  });
  return () => isSeen;
}

/** The colour that a custom property of the style sheet has now. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
