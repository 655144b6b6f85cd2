// One member: its id, every value, and how to open it.

import { copyable } from "./copying";
import { element, printable, quoted } from "./dom";
import { shown } from "./numbers";
import { Payload } from "./payload";
import { text } from "./python";
import { Stateful } from "./state";

export class Details implements Stateful {
  readonly root = element("div", { class: "view", id: "member", tabindex: "-1" });
  private row = -1;

  constructor(
    private readonly payload: Payload,
    private readonly ring: (row: number) => void,
    private readonly changed: () => void,
    private readonly say: (text: string) => void,
  ) {
    this.show(-1);
  }

  show(row: number): void {
    this.row = row;
    this.root.replaceChildren(...(row < 0 ? [element("h3", {}, "The chosen member"), element("p", {}, "Choose a member in the table or in a panel to see its values.")] : this.facts()));
    this.ring(row);
    this.changed();
  }

  state(): string | null {
    return this.row < 0 ? null : this.payload.id(this.row);
  }

  restore(wanted: string | null): void {
    let found = -1;
    if (wanted !== null) for (let row = 0; row < this.payload.header.rows && found < 0; row++) if (this.payload.id(row) === wanted) found = row;
    this.show(found);
  }

  private facts(): HTMLElement[] {
    const { row, payload } = this;
    const { header } = payload;
    const id = payload.id(row);
    const pairs: [string, HTMLElement | string][] = [];
    for (const { name } of header.measures) pairs.push([name, this.number(name)]);
    for (const { name, texts } of header.categories) pairs.push([name, this.among(name, texts)]);
    for (const { name, texts } of header.details) pairs.push([name, texts === null ? this.number(name) : this.among(name, texts)]);
    for (const [name, value] of Object.entries(header.constants))
      pairs.push([name, value === null ? "none" : typeof value === "number" ? shown(value) : quoted(String(value))]);
    pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    const list = element("dl", { class: "facts" });
    for (const [name, value] of pairs) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    return [
      element("h3", {}, element("bdi", { class: "id" }, printable(id))),
      copyable("Copy the checkpoint", () => `zoo.checkpoint(${text(id)})`, this.say),
      list,
    ];
  }

  private number(name: string): string {
    if (this.payload.has(`${name}:null`) && this.payload.column(`${name}:null`)[this.row] === 1) return "none";
    return shown(this.payload.column(name)[this.row]);
  }

  private among(name: string, texts: string[]): HTMLElement | string {
    const found = texts[this.payload.column(name)[this.row]];
    return found === undefined ? "none" : quoted(found);
  }
}
