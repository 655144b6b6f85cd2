// Test accuracies of members along their training.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";
import { select } from "d3-selection";
import { colour, element, whenSeen } from "./dom";
import { shown, whole } from "./numbers";
import { Payload } from "./payload";
import { Selection, View } from "./selection";

const WIDTH = 640;
const HEIGHT = 260;
const LEFT = 44;
const BOTTOM = 22;
const DENSE = 2;

export class Trajectories implements View {
  readonly root: HTMLElement;
  private readonly canvas = element("canvas", { "aria-hidden": "true" });
  private readonly rows: ArrayLike<number>;
  private readonly values: ArrayLike<number>;
  /** Canvas positions of the steps. */
  private readonly across: number[];
  private readonly down;
  private ringed = -1;
  private readonly isSeen: () => boolean;

  constructor(
    payload: Payload,
    private readonly selection: Selection,
  ) {
    const { members, total } = payload.header.trajectories!;
    this.rows = payload.column("trajectory_rows");
    this.values = payload.column("trajectory_values");
    const steps = Array.from(payload.column("trajectory_steps"));
    const positive = steps.filter((step) => step > 0);
    const least = positive.length > 0 ? positive[0] : 1;
    const most = Math.max(least, ...steps);
    const isWide = most / least > 100;
    // step 0 has no place on a logarithmic scale: it is drawn at a third of the first one
    const first = steps[0] > 0 || !isWide ? steps[0] : least / 3;
    const x = (isWide ? scaleLog() : scaleLinear()).domain([first, most > first ? most : first + 1]).range([LEFT, WIDTH - 8]);
    this.across = steps.map((step) => DENSE * x(isWide ? Math.max(step, first) : step));
    const finite = Array.from(this.values).filter((value) => Number.isFinite(value));
    const [low, high] = [finite.reduce((a, b) => Math.min(a, b), 1), finite.reduce((a, b) => Math.max(a, b), 0)];
    this.down = scaleLinear([low, high > low ? high : low + 0.01], [HEIGHT - BOTTOM, 8]);
    this.canvas.width = WIDTH * DENSE;
    this.canvas.height = HEIGHT * DENSE;
    const svg = select(element("div")).append("svg").attr("viewBox", `0 0 ${WIDTH} ${HEIGHT}`).attr("aria-hidden", "true");
    const axis = axisBottom(x).tickFormat((value) => shown(Number(value)));
    if (isWide) axis.tickValues(x.ticks().filter((tick) => Math.abs(Math.log10(tick) % 1) < 1e-9));
    else axis.ticks(6);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${HEIGHT - BOTTOM})`).call(axis);
    svg.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`).call(axisLeft(this.down).ticks(6));
    const of = members < total ? ` of ${whole(total)}, a sample` : "";
    this.root = element(
      "figure",
      { class: "view wide" },
      element("h3", {}, "Test accuracy at the steps of training"),
      element("div", { class: "plot" }, this.canvas, svg.node()!),
      element("figcaption", {}, `${whole(members)} members${of}, ${whole(steps.length)} steps${isWide ? "; logarithmic" : ""}.`),
    );
    this.isSeen = whenSeen(this.canvas, () => this.redraw());
    selection.add(this);
  }

  ring(row: number): void {
    this.ringed = row;
    this.redraw();
  }

  redraw(): void {
    if (!this.isSeen()) return;
    const context = this.canvas.getContext("2d")!;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const { mask } = this.selection;
    this.lines(context, colour("--ghost"), 1, (row) => mask[row] !== 0);
    this.lines(context, colour("--mark"), 1.5, (row) => mask[row] === 0);
    this.lines(context, colour("--ring"), 5, (row) => row === this.ringed);
  }

  private lines(context: CanvasRenderingContext2D, stroke: string, width: number, isDrawn: (row: number) => boolean): void {
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.beginPath();
    const count = this.across.length;
    for (let member = 0; member < this.rows.length; member++) {
      if (!isDrawn(this.rows[member])) continue;
      let isDown = false;
      for (let step = 0; step < count; step++) {
        const value = this.values[member * count + step];
        if (!Number.isFinite(value)) continue;
        const y = DENSE * this.down(value);
        if (isDown) context.lineTo(this.across[step], y);
        else context.moveTo(this.across[step], y);
        isDown = true;
      }
    }
    context.stroke();
  }
}
