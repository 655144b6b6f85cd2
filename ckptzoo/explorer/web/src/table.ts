// The selected members as a table: sorted, searched, 50 rows a page.

import { button, element, shortened } from "./dom";
import { shown, whole } from "./numbers";
import { Payload } from "./payload";
import { Selection } from "./selection";
import { Stateful } from "./state";

const ROWS = 50;
const MAX_ID = 80;

interface TableColumn {
  name: string;
  title: string;
  text(row: number): string;
  /** Order of the rows, ascending; those without a value last. */
  order(): Uint32Array;
}

export class Table implements Stateful {
  readonly root: HTMLElement;
  private readonly columns: TableColumn[];
  private readonly body = element("tbody");
  private readonly position = element("span", { class: "number" });
  private readonly search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  private readonly heads = new Map<string, HTMLElement>();
  private readonly before: HTMLButtonElement;
  private readonly after: HTMLButtonElement;
  private page = 0;
  /** The rows that are there, joined. */
  private drawn = "";
  private sorted = "";
  private isDescending = false;
  private order: Uint32Array;
  private matches: Uint8Array | null = null;

  constructor(
    private readonly payload: Payload,
    private readonly selection: Selection,
    private readonly changed: () => void,
    pick: (row: number) => void,
  ) {
    this.columns = columnsOf(payload);
    this.order = Uint32Array.from({ length: selection.rows }, (_, row) => row);
    const head = element("tr");
    for (const column of this.columns) {
      const cell = element("th", { scope: "col" }, button(column.title, () => this.sortBy(column.name)));
      this.heads.set(column.name, cell);
      head.append(cell);
    }
    this.before = button("Previous", () => this.turn(-1));
    this.after = button("Next", () => this.turn(1));
    this.search.addEventListener("input", () => {
      this.find();
      this.page = 0;
      this.redraw();
      this.changed();
    });
    this.body.addEventListener("click", (event) => {
      const row = (event.target as HTMLElement).closest("tr")?.dataset.row;
      if (row !== undefined) pick(Number(row));
    });
    this.root = element(
      "div",
      {},
      element(
        "div",
        { class: "controls" },
        element("label", { for: "search" }, "Search ids"),
        this.search,
        this.before,
        this.position,
        this.after,
      ),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of members" },
        element("table", {}, element("thead", {}, head), this.body),
      ),
    );
    selection.whenSettled(() => {
      this.page = Math.min(this.page, Math.max(0, Math.ceil(this.count() / ROWS) - 1));
      this.redraw();
    });
  }

  state(): string | null {
    const { sorted, isDescending, page } = this;
    const query = this.search.value;
    if (sorted === "" && page === 0 && query === "") return null;
    return [`${isDescending ? "-" : ""}${sorted}`, page, query].map((part) => encodeURIComponent(part)).join(",");
  }

  restore(text: string | null): void {
    const [sorted, page, query] = (text ?? ",,").split(",").map((part) => decodeURIComponent(part));
    const name = (sorted ?? "").replace(/^-/, "");
    this.sorted = this.heads.has(name) ? name : "";
    this.isDescending = (sorted ?? "").startsWith("-");
    this.search.value = query ?? "";
    this.sort();
    this.find();
    const last = Math.max(0, Math.ceil(this.count() / ROWS) - 1);
    this.page = Math.min(last, Math.max(0, Math.floor(Number(page)) || 0));
    this.redraw();
  }

  private redraw(): void {
    const { order, matches, isDescending } = this;
    const { mask, rows } = this.selection;
    const [first, last] = [this.page * ROWS, (this.page + 1) * ROWS];
    const found: number[] = [];
    for (let at = 0, seen = 0; at < rows && seen < last; at++) {
      const row = order[at];
      if (mask[row] !== 0 || (matches !== null && matches[row] === 0)) continue;
      if (seen++ >= first) found.push(row);
    }
    // rows that stay keep the focus
    if (found.join() !== this.drawn) this.body.replaceChildren(...found.map((row) => this.line(row)));
    this.drawn = found.join();
    const count = this.count();
    this.position.textContent = count === 0 ? "none" : `${whole(first + 1)} to ${whole(Math.min(last, count))} of ${whole(count)}`;
    this.before.disabled = this.page === 0;
    this.after.disabled = last >= count;
    for (const [name, cell] of this.heads) {
      if (name === this.sorted) cell.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  private line(row: number): HTMLElement {
    const line = element("tr", { "data-row": String(row) });
    this.columns.forEach((column, index) => {
      if (index > 0) line.append(element("td", {}, column.text(row)));
      else line.append(element("th", { scope: "row" }, element("button", { type: "button", class: "link" }, element("bdi", {}, column.text(row)))));
    });
    return line;
  }

  private count(): number {
    const { mask, rows } = this.selection;
    if (this.matches === null) return this.selection.count;
    let count = 0;
    for (let row = 0; row < rows; row++) if (mask[row] === 0 && this.matches[row] === 1) count++;
    return count;
  }

  private turn(pages: number): void {
    this.page += pages;
    this.redraw();
    this.changed();
  }

  private sortBy(name: string): void {
    if (this.sorted === name) this.isDescending = !this.isDescending;
    else [this.sorted, this.isDescending] = [name, false];
    this.page = 0;
    this.sort();
    this.redraw();
    this.changed();
  }

  private sort(): void {
    const column = this.columns.find(({ name }) => name === this.sorted);
    this.order = column === undefined ? Uint32Array.from({ length: this.selection.rows }, (_, row) => row) : column.order();
    if (column !== undefined && this.isDescending) this.order.reverse();
  }

  private find(): void {
    const query = this.search.value.toLowerCase();
    if (query === "") {
      this.matches = null;
      return;
    }
    const { rows } = this.selection;
    this.matches = new Uint8Array(rows);
    for (let row = 0; row < rows; row++) if (this.payload.id(row).toLowerCase().includes(query)) this.matches[row] = 1;
  }
}

function columnsOf(payload: Payload): TableColumn[] {
  const { header } = payload;
  const rows = () => Array.from({ length: header.rows }, (_, row) => row);
  const ids: TableColumn = {
    name: "id",
    title: "id",
    text: (row) => shortened(payload.id(row), MAX_ID),
    order: () => {
      const texts = rows().map((row) => payload.id(row));
      return Uint32Array.from(rows().sort((a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : a - b)));
    },
  };
  const found = [ids];
  for (const { name } of header.measures) {
    const values = payload.column(name);
    found.push({ name, title: name, text: (row) => (Number.isNaN(values[row]) ? "" : shown(values[row])), order: () => ordered(values) });
  }
  for (const { name, texts } of header.categories) {
    if (texts.length < 2) continue;
    const codes = payload.column(name);
    const places = Float64Array.from({ length: 256 }, () => NaN);
    texts.map((text, code) => ({ text, code })).sort((a, b) => (a.text < b.text ? -1 : 1)).forEach(({ code }, place) => (places[code] = place));
    found.push({ name, title: name, text: (row) => shortened(texts[codes[row]] ?? "", 40), order: () => ordered(Float64Array.from(codes, (code) => places[code])) });
  }
  return found;
}

/** Rows by their values, ascending, those with NaN last. */
function ordered(values: ArrayLike<number>): Uint32Array {
  const order = Uint32Array.from({ length: values.length }, (_, row) => row);
  const key = (row: number) => (Number.isNaN(values[row]) ? Infinity : values[row]);
  return order.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : Number(Number.isNaN(values[a])) - Number(Number.isNaN(values[b])) || a - b));
}
