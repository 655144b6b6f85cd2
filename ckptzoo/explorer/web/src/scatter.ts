// Members along two principal components of the weights of a layer, with a brush; a density where there are many.

import { axisBottom, axisLeft } from "d3-axis";
import { brush, D3BrushEvent } from "d3-brush";
import { ScaleLinear, scaleLinear } from "d3-scale";
import { pointer, select } from "d3-selection";
import { Colouring, Mark } from "./colouring";
import { button, colour, element, quoted, whenSeen } from "./dom";
import { RangeFields } from "./fields";
import { rounded, share, shown, whole } from "./numbers";
import { LayerFacts, PanelFacts, Payload } from "./payload";
import { Selection, View } from "./selection";
import { EVERYTHING, isEverything, Range, rangeOf, rangeText, Stateful } from "./state";

const SIZE = 400;
const LEFT = 40;
const BOTTOM = 22;
const MARGIN = 6;
/** Canvas pixels of a unit of the picture. */
const DENSE = 2;
const MISSING = -(2 ** 15);
/** More members than this are drawn as a density, in cells of this many canvas pixels. */
const MAX_POINTS = 20_000;
const CELL = 4;
const NEAR = 12;

/** Members that are drawn alike; without a mark as small squares. */
interface Group {
  fill: string;
  mark: Mark | null;
  has(row: number): boolean;
}

export class Scatter implements View, Stateful {
  readonly root: HTMLElement;
  private x: Int16Array = new Int16Array(0);
  private y: Int16Array = new Int16Array(0);
  private panel: PanelFacts | undefined;
  private ranges: [Range, Range] = [EVERYTHING, EVERYTHING];
  private readonly bit: number;
  private readonly fields: [RangeFields, RangeFields];
  private readonly scales: [ScaleLinear<number, number>, ScaleLinear<number, number>];
  private readonly canvas = element("canvas", { "aria-hidden": "true" });
  /** All members in grey, drawn once for a layer and a colour scheme. */
  private readonly background = element("canvas");
  private readonly caption = element("figcaption");
  private readonly axes: [SVGGElement, SVGGElement];
  private readonly circle: SVGCircleElement;
  private readonly brush = brush<unknown>();
  private readonly brushed;
  private readonly isSeen: () => boolean;

  constructor(
    private readonly payload: Payload,
    readonly variant: string,
    title: string,
    private readonly selection: Selection,
    private readonly colouring: Colouring,
    private readonly changed: () => void,
    private readonly pick: (row: number) => void,
  ) {
    this.bit = selection.bit();
    this.scales = [scaleLinear([LEFT, SIZE - MARGIN]), scaleLinear([SIZE - BOTTOM, MARGIN])];
    this.fields = [0, 1].map(
      (axis) =>
        new RangeFields(`${title}, component ${axis + 1}`, `${axis + 1}`, (range) => {
          const ranges: [Range, Range] = [...this.ranges];
          ranges[axis] = range;
          this.set(ranges);
        }),
    ) as [RangeFields, RangeFields];
    for (const canvas of [this.canvas, this.background]) canvas.width = canvas.height = SIZE * DENSE;
    const svg = select(element("div")).append("svg").attr("viewBox", `0 0 ${SIZE} ${SIZE}`).attr("aria-hidden", "true");
    this.axes = [
      svg.append("g").attr("class", "axis").attr("transform", `translate(0,${SIZE - BOTTOM})`).node()!,
      svg.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`).node()!,
    ];
    this.circle = svg.append("circle").attr("class", "ring").attr("r", 7).attr("visibility", "hidden").node()!;
    this.brush.extent([
      [LEFT, MARGIN],
      [SIZE - MARGIN, SIZE - BOTTOM],
    ]);
    this.brush.on("brush end", (event: D3BrushEvent<unknown>) => this.moved(event));
    this.brushed = svg.append("g").attr("class", "brush").call(this.brush);
    // d3 lets no click through that ends a movement
    svg.on("click", (event) => this.clicked(pointer(event, svg.node())));
    const clear = button("Clear", () => this.set([EVERYTHING, EVERYTHING]));
    clear.setAttribute("aria-label", `Clear ${title}`);
    this.root = element(
      "figure",
      { class: "view panel" },
      element("h3", {}, quoted(title)),
      element("div", { class: "plot" }, this.canvas, svg.node()!),
      element("div", { class: "controls" }, ...this.fields.map((fields) => fields.root), clear),
      this.caption,
    );
    this.isSeen = whenSeen(this.canvas, () => this.redraw());
    selection.add(this);
  }

  /** Show another layer; a brush of the last one is taken away. */
  show(layer: LayerFacts): void {
    this.panel = layer.panels.find((panel) => panel.variant === this.variant);
    this.root.hidden = this.panel === undefined;
    const { panel } = this;
    if (panel !== undefined) {
      this.x = this.payload.column(`${panel.column}:x`) as Int16Array;
      this.y = this.payload.column(`${panel.column}:y`) as Int16Array;
      [this.x, this.y].forEach((values, axis) => {
        const [low, high] = ends(values);
        const pad = Math.max(1, 0.04 * (high - low));
        const [from, to] = [(low - pad) * panel.steps[axis], (high + pad) * panel.steps[axis]];
        this.scales[axis].domain([from, to]);
      });
      const format = (value: { valueOf(): number }) => shown(Number(value));
      select(this.axes[0]).call(axisBottom(this.scales[0]).ticks(5).tickFormat(format));
      select(this.axes[1]).call(axisLeft(this.scales[1]).ticks(5).tickFormat(format));
      const notes = [
        `${whole(panel.members)} members`,
        `${share(panel.ratios[0])} and ${share(panel.ratios[1])} of the variance`,
      ];
      if (panel.left_out > 0) notes.push(`${whole(panel.left_out)} left out: diverged, not finite, or not in the gauge`);
      if (panel.basis < panel.members) notes.push(`components of ${whole(panel.basis)} of them`);
      this.caption.textContent = `${notes.join("; ")}.`;
    }
    this.repaint();
    this.set([EVERYTHING, EVERYTHING]);
  }

  get isOn(): boolean {
    return !this.ranges.every(isEverything);
  }

  set(ranges: [Range, Range]): void {
    this.restrict(ranges);
    this.showBrush();
    this.changed();
  }

  state(): string | null {
    return this.isOn ? this.ranges.map(rangeText).join(",") : null;
  }

  restore(text: string | null): void {
    const [x, y] = (text ?? "").split(",");
    this.set([rangeOf(x), rangeOf(y ?? "")]);
  }

  /** Draw what does not depend on the selection again: another layer, other colours. */
  repaint(): void {
    this.draw(this.background, [{ fill: colour("--ghost"), mark: null, has: () => true }]);
    this.selection.changed();
  }

  redraw(): void {
    // pictures beyond the window cost most of a frame, and are drawn when they come into it
    if (!this.isSeen()) return;
    const context = this.canvas.getContext("2d")!;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.background, 0, 0);
    const { mask } = this.selection;
    const { classes, codes } = this.colouring;
    const isSelected = (row: number) => mask[row] === 0;
    const groups = classes.map(({ property, mark }, code) => ({ fill: colour(property), mark, has: (row: number) => codes[row] === code && isSelected(row) }));
    this.draw(this.canvas, groups.length > 0 ? groups : [{ fill: colour("--mark"), mark: null, has: isSelected }], false);
  }

  ring(row: number): void {
    const isPlaced = row >= 0 && this.panel !== undefined && this.x[row] !== MISSING;
    this.circle.setAttribute("visibility", isPlaced ? "visible" : "hidden");
    if (isPlaced) {
      this.circle.setAttribute("cx", String(this.placeX(row)));
      this.circle.setAttribute("cy", String(this.placeY(row)));
    }
  }

  private placeX(row: number): number {
    return this.scales[0](this.x[row] * this.panel!.steps[0]);
  }

  private placeY(row: number): number {
    return this.scales[1](this.y[row] * this.panel!.steps[1]);
  }

  private draw(canvas: HTMLCanvasElement, groups: Group[], clear = true): void {
    const context = canvas.getContext("2d")!;
    if (clear) context.clearRect(0, 0, canvas.width, canvas.height);
    const { panel, x, y } = this;
    if (panel === undefined) return;
    const [across, down] = this.scales.map((scale, axis) => {
      const [from, to] = [scale(0), scale(panel.steps[axis])];
      return { start: from * DENSE, step: (to - from) * DENSE };
    });
    const place = (row: number): [number, number] => [across.start + across.step * x[row], down.start + down.step * y[row]];
    if (x.length > MAX_POINTS) {
      this.density(context, groups, place);
      return;
    }
    const size = x.length > 5000 ? 3 : x.length > 300 ? 5 : 9;
    for (const { fill, mark, has } of groups) {
      context.fillStyle = fill;
      context.beginPath();
      for (let row = 0; row < x.length; row++) {
        if (x[row] === MISSING || !has(row)) continue;
        const [atX, atY] = place(row);
        if (mark === null) context.fillRect(atX - size / 2, atY - size / 2, size, size);
        else mark(context, atX, atY, size);
      }
      context.fill();
    }
  }

  /** How many members are in each cell, in the colour of the group that has most of them there. */
  private density(context: CanvasRenderingContext2D, groups: Group[], place: (row: number) => [number, number]): void {
    const { canvas } = context;
    const side = canvas.width / CELL;
    const totals = new Uint16Array(side * side);
    const most = new Uint16Array(side * side);
    const image = new ImageData(side, side);
    for (const { fill, has } of groups) {
      const cells = new Uint16Array(side * side);
      for (let row = 0; row < this.x.length; row++) {
        if (this.x[row] === MISSING || !has(row)) continue;
        const [atX, atY] = place(row);
        cells[((atY / CELL) | 0) * side + ((atX / CELL) | 0)]++;
      }
      const [red, green, blue] = components(fill);
      for (let cell = 0; cell < cells.length; cell++) {
        totals[cell] += cells[cell];
        if (cells[cell] <= most[cell]) continue;
        most[cell] = cells[cell];
        image.data.set([red, green, blue], 4 * cell);
      }
    }
    let greatest = 1;
    for (const count of totals) if (count > greatest) greatest = count;
    const scale = 1 / Math.log1p(greatest);
    for (let cell = 0; cell < totals.length; cell++) if (totals[cell] > 0) image.data[4 * cell + 3] = 110 + 145 * Math.log1p(totals[cell]) * scale;
    const small = new OffscreenCanvas(side, side);
    small.getContext("2d")!.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
  }

  private restrict(ranges: [Range, Range]): void {
    this.ranges = ranges;
    ranges.forEach((range, axis) => this.fields[axis].show(range));
    const { panel, x, y } = this;
    if (!this.isOn || panel === undefined) {
      this.selection.restrict(this.bit, null);
      return;
    }
    const [[left, right], [lowest, highest]] = ranges.map((range, axis) => [
      (range.low ?? -Infinity) / panel.steps[axis],
      (range.high ?? Infinity) / panel.steps[axis],
    ]);
    this.selection.restrict(
      this.bit,
      (row) => x[row] === MISSING || !(x[row] >= left && x[row] <= right && y[row] >= lowest && y[row] <= highest),
    );
  }

  private moved(event: D3BrushEvent<unknown>): void {
    if (!event.sourceEvent) return;
    if (event.selection === null) {
      if (event.type === "end") this.showBrush();
      return;
    }
    const [[left, top], [right, bottom]] = event.selection as [[number, number], [number, number]];
    const range = (axis: 0 | 1, from: number, to: number): Range => {
      const invert = (at: number) => this.scales[axis].invert(at);
      const pixel = Math.abs(invert(0.5) - invert(0));
      return { low: rounded(invert(from), pixel), high: rounded(invert(to), pixel) };
    };
    this.restrict([range(0, left, right), range(1, bottom, top)]);
    if (event.type === "end") this.changed();
  }

  private showBrush(): void {
    if (!this.isOn) {
      this.brushed.call(this.brush.move, null);
      return;
    }
    const [[left, right], [bottom, top]] = this.scales.map((scale, axis) => {
      const [start, stop] = scale.range();
      const [least, most] = [Math.min(start, stop), Math.max(start, stop)];
      const place = (value: number | null, end: number) =>
        value === null ? end : Math.min(most, Math.max(least, scale(value)));
      return [place(this.ranges[axis].low, start), place(this.ranges[axis].high, stop)];
    });
    this.brushed.call(this.brush.move, [
      [Math.min(left, right), Math.min(top, bottom)],
      [Math.max(left, right), Math.max(top, bottom)],
    ]);
  }

  private clicked([atX, atY]: [number, number]): void {
    if (this.panel === undefined) return;
    let [nearest, least] = [-1, NEAR ** 2];
    const { mask } = this.selection;
    for (let row = 0; row < this.x.length; row++) {
      if (this.x[row] === MISSING || mask[row] !== 0) continue;
      const distance = (this.placeX(row) - atX) ** 2 + (this.placeY(row) - atY) ** 2;
      if (distance < least) [nearest, least] = [row, distance];
    }
    if (nearest >= 0) this.pick(nearest);
  }
}

function ends(values: Int16Array): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === MISSING) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [-1, 1];
}

/** Red, green and blue of any colour of CSS, the system's ones too. */
function components(fill: string): Uint8ClampedArray {
  const context = new OffscreenCanvas(1, 1).getContext("2d")!;
  context.fillStyle = fill;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
}
