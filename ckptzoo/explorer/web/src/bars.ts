// Bars of a column of texts: how many members have each, and a box to select those.

import { element, quoted } from "./dom";
import { whole } from "./numbers";
import { CategoryFacts, Payload } from "./payload";
import { list, term } from "./python";
import { Selection, View } from "./selection";
import { Stateful } from "./state";

/** Texts that have a bar of their own. */
export const SHOWN = 12;
const NULL = 255;

interface Bar {
  code: number;
  box: HTMLInputElement;
  selected: HTMLElement;
  count: HTMLElement;
}

export class Bars implements View, Stateful {
  readonly root: HTMLElement;
  private readonly codes: ArrayLike<number>;
  private readonly counts = new Uint32Array(256);
  private readonly bars: Bar[] = [];
  private readonly bit: number;
  private readonly chosen = new Set<number>();
  private readonly most: number;
  private readonly factor: number;

  constructor(
    payload: Payload,
    readonly facts: CategoryFacts,
    title: string,
    private readonly selection: Selection,
    private readonly changed: () => void,
  ) {
    this.bit = selection.bit();
    this.codes = payload.column(facts.name);
    this.most = Math.max(1, facts.missing, ...facts.counts);
    this.factor = payload.header.total / Math.max(1, payload.header.rows);
    const rows = element("div", { class: "bars" });
    facts.texts.slice(0, SHOWN).forEach((text, code) => rows.append(this.bar(code, quoted(text, 60), facts.counts[code])));
    if (facts.missing > 0) rows.append(this.bar(NULL, element("i", {}, "none given"), facts.missing));
    const others = facts.counts.slice(SHOWN);
    if (others.length > 0) {
      const total = others.reduce((sum, count) => sum + count, 0);
      rows.append(element("p", {}, `${whole(others.length)} others: ${whole(total)}`));
    }
    const legend = element("legend", { title: facts.doc }, title);
    this.root = element("fieldset", { class: "view" }, legend, rows);
    selection.add(this);
  }

  terms(): string[] | null {
    if (this.chosen.size === 0) return [];
    if (!this.facts.is_column) return null;
    const values = [...this.chosen].sort((a, b) => a - b).map((code) => (code === NULL ? null : this.facts.texts[code]));
    return [term(this.facts.name, "in", list(values))];
  }

  state(): string | null {
    if (this.chosen.size === 0) return null;
    return [...this.chosen].map((code) => (code === NULL ? "" : encodeURIComponent(this.facts.texts[code]))).join(",");
  }

  restore(text: string | null): void {
    const wanted = text === null ? [] : text.split(",");
    this.chosen.clear();
    for (const bar of this.bars) {
      const own = bar.code === NULL ? "" : encodeURIComponent(this.facts.texts[bar.code]);
      bar.box.checked = wanted.includes(own);
      if (bar.box.checked) this.chosen.add(bar.code);
    }
    this.restrict();
  }

  redraw(): void {
    const { counts, codes, bit } = this;
    const { mask, rows } = this.selection;
    counts.fill(0);
    const others = ~bit;
    for (let row = 0; row < rows; row++) if ((mask[row] & others) === 0) counts[codes[row]]++;
    for (const bar of this.bars) {
      bar.selected.style.width = `${Math.min(100, (100 * counts[bar.code] * this.factor) / this.most)}%`;
      bar.count.textContent = whole(counts[bar.code]);
    }
  }

  private bar(code: number, name: HTMLElement, total: number): HTMLElement {
    const box = element("input", { type: "checkbox" });
    const [all, selected] = [element("span", { class: "all" }), element("span", { class: "selected" })];
    all.style.width = `${(100 * total) / this.most}%`;
    const count = element("span");
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(code);
      else this.chosen.delete(code);
      this.restrict();
      this.changed();
    });
    this.bars.push({ code, box, selected, count });
    const track = element("span", { class: "track", "aria-hidden": "true" }, all, selected);
    const figures = element("span", { class: "number" }, count, ` of ${whole(total)}`);
    return element("label", { class: "bar" }, box, element("span", { class: "name" }, name), figures, track);
  }

  private restrict(): void {
    const { codes, chosen } = this;
    this.selection.restrict(this.bit, chosen.size === 0 ? null : (row) => !chosen.has(codes[row]));
  }
}
