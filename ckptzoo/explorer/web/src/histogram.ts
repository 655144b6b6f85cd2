// A histogram of one column: grey bars of all members, coloured ones of those that the other views select.

import { axisBottom } from "d3-axis";
import { brushX, D3BrushEvent } from "d3-brush";
import { scaleLinear, scaleLog } from "d3-scale";
import { select } from "d3-selection";
import { button, element } from "./dom";
import { RangeFields } from "./fields";
import { rounded, shown, whole } from "./numbers";
import { MeasureFacts, Payload } from "./payload";
import { term } from "./python";
import { Selection, View } from "./selection";
import { EVERYTHING, isEverything, Range, rangeOf, rangeText, Stateful } from "./state";

const WIDTH = 320;
const HEIGHT = 96;
const AXIS = 18;
const SIDE = 16;
const NO_BIN = 0xffff;

export class Histogram implements View, Stateful {
  readonly root: HTMLElement;
  range: Range = EVERYTHING;
  private readonly values: ArrayLike<number>;
  private readonly bins: Uint16Array;
  private readonly counts: Uint32Array;
  /** How many members a member of the page stands for, where it has a sample. */
  private readonly factor: number;
  private readonly bit: number;
  private readonly fields: RangeFields;
  private readonly bars: SVGPathElement;
  private readonly mark: SVGLineElement;
  private readonly scale;
  private readonly brush = brushX<unknown>();
  private readonly brushed;

  constructor(
    payload: Payload,
    readonly facts: MeasureFacts,
    private readonly selection: Selection,
    private readonly changed: () => void,
  ) {
    this.bit = selection.bit();
    this.values = payload.column(facts.name);
    this.bins = binsOf(this.values, facts.edges);
    this.counts = new Uint32Array(facts.counts.length);
    const binned = this.bins.reduce((count, bin) => count + (bin === NO_BIN ? 0 : 1), 0);
    this.factor = totalOf(facts) / Math.max(1, binned);
    this.fields = new RangeFields(facts.title, "from", (range) => this.set(range));
    const { edges } = facts;
    const ends = edges.length > 0 ? [edges[0], edges[edges.length - 1]] : [0, 1];
    this.scale = (facts.scale === "log" ? scaleLog() : scaleLinear()).domain(ends).range([SIDE, WIDTH - SIDE]);
    const svg = select(element("div"))
      .append("svg")
      .attr("viewBox", `0 0 ${WIDTH} ${HEIGHT + AXIS}`)
      .attr("aria-hidden", "true");
    svg.append("path").attr("class", "all").attr("d", this.path(facts.counts, 1));
    this.bars = svg.append("path").attr("class", "selected").node()!;
    this.mark = svg.append("line").attr("class", "mark").attr("y2", HEIGHT).attr("visibility", "hidden").node()!;
    const axis = axisBottom(this.scale).tickFormat((value) => shown(Number(value)));
    if (facts.scale === "log") axis.tickValues(powers(ends[0], ends[1]));
    // bins of whole numbers begin and end at halves
    else axis.tickValues(this.scale.ticks(5).filter((tick) => Math.abs(ends[0] % 1) !== 0.5 || Number.isInteger(tick)));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${HEIGHT})`).call(axis);
    this.brush.extent([
      [SIDE, 0],
      [WIDTH - SIDE, HEIGHT],
    ]);
    this.brush.on("brush end", (event: D3BrushEvent<unknown>) => this.moved(event));
    this.brushed = svg.append("g").attr("class", "brush");
    if (edges.length > 0) this.brushed.call(this.brush);
    this.root = element(
      "figure",
      { class: "view" },
      element("h3", { title: facts.doc }, facts.title),
      svg.node()!,
      element("div", { class: "controls" }, this.fields.root, button("Clear", () => this.set(EVERYTHING))),
      element("figcaption", {}, this.caption()),
    );
    this.root.querySelector("button")!.setAttribute("aria-label", `Clear ${facts.title}`);
    selection.add(this);
  }

  /** Conditions of zoo.where; null where it has no such column. */
  terms(): string[] | null {
    if (isEverything(this.range)) return [];
    if (!this.facts.is_column) return null;
    const terms = [];
    if (this.range.low !== null) terms.push(term(this.facts.name, ">=", String(this.range.low)));
    if (this.range.high !== null) terms.push(term(this.facts.name, "<=", String(this.range.high)));
    return terms;
  }

  set(range: Range): void {
    this.restrict(range);
    this.showBrush();
    this.changed();
  }

  state(): string | null {
    return isEverything(this.range) ? null : rangeText(this.range);
  }

  restore(text: string | null): void {
    this.set(text === null ? EVERYTHING : rangeOf(text));
  }

  redraw(): void {
    const { bins, counts, bit } = this;
    const { mask, rows } = this.selection;
    counts.fill(0);
    const others = ~bit;
    for (let row = 0; row < rows; row++) if ((mask[row] & others) === 0 && bins[row] !== NO_BIN) counts[bins[row]]++;
    this.bars.setAttribute("d", this.path(counts, this.factor));
  }

  /** Mark the value of a member; -1 for none. */
  ring(row: number): void {
    const x = row < 0 ? NaN : this.scale(this.values[row]);
    this.mark.setAttribute("visibility", Number.isFinite(x) ? "visible" : "hidden");
    if (Number.isFinite(x)) {
      this.mark.setAttribute("x1", String(x));
      this.mark.setAttribute("x2", String(x));
    }
  }

  private moved(event: D3BrushEvent<unknown>): void {
    if (!event.sourceEvent) return;
    if (event.selection === null) {
      // a click; the brush stays, and is taken away by its button
      if (event.type === "end") this.showBrush();
      return;
    }
    const [from, to] = event.selection as [number, number];
    const ends = this.scale.range();
    // a brush that reaches an end is open there: values beyond the picture are selected too
    const low = from <= ends[0] ? null : this.valueAt(from);
    const high = to >= ends[1] ? null : this.valueAt(to);
    this.restrict({ low, high });
    if (event.type === "end") this.changed();
  }

  private restrict(range: Range): void {
    this.range = range;
    this.fields.show(range);
    const { values } = this;
    const [low, high] = [range.low ?? -Infinity, range.high ?? Infinity];
    // NaN, which stands for a missing value too, is in no range
    this.selection.restrict(this.bit, isEverything(range) ? null : (row) => !(values[row] >= low && values[row] <= high));
  }

  private valueAt(x: number): number {
    const value = this.scale.invert(x);
    return rounded(value, Math.abs(this.scale.invert(x + 0.5) - value));
  }

  private showBrush(): void {
    if (this.facts.edges.length === 0) return;
    if (isEverything(this.range)) {
      this.brushed.call(this.brush.move, null);
      return;
    }
    const [left, right] = this.scale.range();
    const place = (value: number | null, end: number) => {
      const x = value === null ? end : this.scale(value);
      return Number.isFinite(x) ? Math.min(right, Math.max(left, x)) : left;
    };
    const [from, to] = [place(this.range.low, left), place(this.range.high, right)];
    this.brushed.call(this.brush.move, [Math.min(from, to), Math.max(from, to)]);
  }

  private path(counts: ArrayLike<number>, factor: number): string {
    const { edges } = this.facts;
    let most = 1;
    for (const count of this.facts.counts) most = Math.max(most, count);
    let path = "";
    for (let bin = 0; bin < counts.length; bin++) {
      if (counts[bin] === 0) continue;
      // a bar of a few members among many is one pixel high and not invisible
      const height = Math.max(1, Math.min(1, (counts[bin] * factor) / most) * (HEIGHT - 4));
      const [left, right] = [this.scale(edges[bin]), this.scale(edges[bin + 1])];
      path += `M${left.toFixed(2)} ${HEIGHT}V${(HEIGHT - height).toFixed(2)}H${Math.max(left + 0.5, right - 0.5).toFixed(2)}V${HEIGHT}z`;
    }
    return path;
  }

  private caption(): string {
    const { facts } = this;
    const notes = [];
    if (facts.missing > 0) notes.push(`${whole(facts.missing)} without a value`);
    if (facts.nan > 0) notes.push(`${whole(facts.nan)} NaN`);
    if (facts.infinite > 0) notes.push(`${whole(facts.infinite)} infinite`);
    if (facts.beyond > 0) notes.push(`${whole(facts.beyond)} outside the picture`);
    return notes.join(", ");
  }
}

function totalOf(facts: MeasureFacts): number {
  return facts.counts.reduce((sum, count) => sum + count, 0);
}

/** The bin of each value, as numpy.histogram has it: the upper edge belongs to the next bin, the last to the last. */
function binsOf(values: ArrayLike<number>, edges: number[]): Uint16Array {
  const bins = new Uint16Array(values.length).fill(NO_BIN);
  const last = edges.length - 1;
  if (last < 1) return bins;
  for (let row = 0; row < values.length; row++) {
    const value = values[row];
    if (!(value >= edges[0] && value <= edges[last])) continue;
    let [low, high] = [0, last];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (value >= edges[middle]) low = middle;
      else high = middle;
    }
    bins[row] = low;
  }
  return bins;
}

/** Powers of ten in a range, at most six, or three places in it where it has no two. */
function powers(low: number, high: number): number[] {
  const [start, stop] = [Math.log10(low), Math.log10(high)];
  const [first, last] = [Math.ceil(start), Math.floor(stop)];
  const step = Math.max(1, Math.ceil((last - first) / 5));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  if (found.length > 1) return found;
  return [0.1, 0.5, 0.9].map((part) => Number((10 ** (start + part * (stop - start))).toPrecision(2)));
}
