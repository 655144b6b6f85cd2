// Code to copy: in a field to select, and by a button where the browser has a clipboard.

import { button, element } from "./dom";

/** Longer code is put into its field when it is copied, and not before. */
const MAX_SHOWN = 4000;

/** A field with code, and a button that copies it; `say` tells what came of it. */
export function copyable(name: string, code: () => string, say: (text: string) => void): HTMLElement {
  const field = element("textarea", { readonly: "", rows: "2", spellcheck: "false", "aria-label": `${name}: code` });
  field.value = code();
  return element("div", { class: "copy" }, field, button(name, () => copy(field, code(), say)));
}

export function showCode(field: HTMLTextAreaElement, code: string): void {
  field.value = code.length <= MAX_SHOWN ? code : `${code.slice(0, MAX_SHOWN)}...`;
}

export async function copy(field: HTMLTextAreaElement, code: string, say: (text: string) => void): Promise<void> {
  try {
    await navigator.clipboard.writeText(code);
    say(`Copied ${code.length.toLocaleString("en")} characters.`);
  } catch {
    // frames without an origin, as a hub shows the page in, have no clipboard
    field.value = code;
    field.focus();
    field.select();
    say("The browser gives no clipboard here: the code is marked, copy it with Ctrl+C.");
  }
}
