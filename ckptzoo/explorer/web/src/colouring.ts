// What the points of the panels are coloured by: classes of a column, each with a colour and a shape, and their legend.

import { colour, element, quoted } from "./dom";
import { shown, whole } from "./numbers";
import { Payload } from "./payload";
import { Stateful } from "./state";

/** Texts that have a class of their own, the most frequent ones; the others share one. */
const MOST = 6;
/** Classes of numbers: fifths of the members. */
const FIFTHS = 5;
const NULL = 255;
const SIZE = 22;

export type Mark = (context: CanvasRenderingContext2D, x: number, y: number, r: number) => void;

const polygon =
  (...corners: [number, number][]): Mark =>
  (context, x, y, r) => {
    corners.forEach(([across, down], index) => (index === 0 ? context.moveTo(x + r * across, y + r * down) : context.lineTo(x + r * across, y + r * down)));
    context.closePath();
  };
const W = 0.36;
const circle: Mark = (context, x, y, r) => {
  context.moveTo(x + r, y);
  context.arc(x, y, r, 0, 2 * Math.PI);
};
/** Shapes of about one area, which are told apart without their colours. */
const MARKS: Mark[] = [
  circle,
  polygon([-1, -1], [1, -1], [1, 1], [-1, 1]),
  polygon([0, -1.3], [1.2, 0.9], [-1.2, 0.9]),
  polygon([0, -1.4], [1.1, 0], [0, 1.4], [-1.1, 0]),
  polygon([0, 1.3], [1.2, -0.9], [-1.2, -0.9]),
  polygon([-W, -1.3], [W, -1.3], [W, -W], [1.3, -W], [1.3, W], [W, W], [W, 1.3], [-W, 1.3], [-W, W], [-1.3, W], [-1.3, -W], [-W, -W]),
];
/** Of others, and of members without a value: a ring, whose hole is drawn against the direction of its border. */
const ring: Mark = (context, x, y, r) => {
  circle(context, x, y, r);
  context.moveTo(x + 0.55 * r, y);
  context.arc(x, y, 0.55 * r, 0, -2 * Math.PI, true);
};

export interface PointClass {
  text: string;
  count: number;
  /** The custom property of the style sheet that has its colour. */
  property: string;
  mark: Mark;
}

export class Colouring implements Stateful {
  readonly root = element("div");
  classes: PointClass[] = [];
  /** The number of each member's class. */
  codes: Uint8Array = new Uint8Array(0);
  private readonly choice = element("select", { id: "colour" });
  private readonly legend = element("ul", { class: "legend", "aria-labelledby": "colour-label" });
  private readonly names: string[] = [""];

  constructor(
    private readonly payload: Payload,
    titles: (name: string) => string,
    private readonly repaint: () => void,
    changed: () => void,
  ) {
    const { measures, categories } = payload.header;
    this.choice.append(element("option", { value: "" }, "nothing"));
    const differing = categories.filter(({ counts, missing }) => counts.length + Number(missing > 0) > 1).map(({ name }) => name);
    for (const name of [...differing, ...measures.map(({ name }) => name).filter((name) => fifths(this.known(name)).length > 0)]) {
      this.names.push(name);
      this.choice.append(element("option", { value: name }, titles(name)));
    }
    this.choice.addEventListener("change", () => {
      this.show(this.choice.value);
      changed();
    });
    this.root.append(
      element("p", { class: "controls" }, element("label", { for: "colour", id: "colour-label" }, "Colour by"), this.choice),
      this.legend,
    );
    this.show("");
  }

  get isOn(): boolean {
    return this.classes.length > 0;
  }

  state(): string | null {
    return this.choice.value === "" ? null : this.choice.value;
  }

  restore(text: string | null): void {
    const name = text !== null && this.names.includes(text) ? text : "";
    if (name !== this.choice.value) this.show(name);
  }

  /** Draw the marks of the legend again, in the colours of now. */
  redraw(): void {
    this.legend.querySelectorAll("canvas").forEach((canvas, index) => {
      const context = canvas.getContext("2d")!;
      context.clearRect(0, 0, canvas.width, canvas.height);
      const { mark, property } = this.classes[index];
      context.fillStyle = colour(property);
      context.beginPath();
      mark(context, canvas.width / 2, canvas.height / 2, canvas.width / 3);
      context.fill();
    });
  }

  private show(name: string): void {
    this.choice.value = name;
    this.classes = [];
    const category = this.payload.header.categories.find((facts) => facts.name === name);
    if (category !== undefined) this.byText(category.name, category.texts);
    else if (name !== "") this.byNumber(name);
    this.legend.hidden = !this.isOn;
    this.legend.replaceChildren(
      ...this.classes.map(({ text, count }) =>
        element("li", {}, element("canvas", { width: String(SIZE), height: String(SIZE), "aria-hidden": "true" }), quoted(text, 60), ` (${whole(count)})`),
      ),
    );
    this.redraw();
    this.repaint();
  }

  private byText(name: string, texts: string[]): void {
    const own = this.payload.column(name);
    const shownTexts = texts.slice(0, MOST);
    const without = texts.length > MOST ? `${whole(texts.length - MOST)} others, or none given` : "none given";
    this.take(shownTexts, without, "--class", (row) => own[row]);
  }

  private byNumber(name: string): void {
    const values = this.payload.column(name);
    const isNull = this.payload.has(`${name}:null`) ? this.payload.column(`${name}:null`) : null;
    const known = this.known(name);
    const ends = fifths(known);
    const [low, high] = [known[0], known[known.length - 1]];
    const texts = [low, ...ends].map((start, index) => `${shown(start)} to ${shown([...ends, high][index])}`);
    this.take(texts, "none, or not finite", "--fifth", (row) => {
      const value = values[row];
      if (isNull?.[row] === 1 || !Number.isFinite(value)) return NULL;
      let place = 0;
      while (place < ends.length && value >= ends[place]) place++;
      return place;
    });
  }

  private take(texts: string[], without: string, property: string, code: (row: number) => number): void {
    const counts = new Uint32Array(texts.length + 1);
    this.codes = Uint8Array.from({ length: this.payload.header.rows }, (_, row) => Math.min(code(row), texts.length));
    for (const own of this.codes) counts[own]++;
    this.classes = texts.map((text, index) => ({ text, count: counts[index], property: `${property}-${index}`, mark: MARKS[index] }));
    if (counts[texts.length] > 0) this.classes.push({ text: without, count: counts[texts.length], property: "--soft", mark: ring });
  }

  /** The finite values of a column of numbers, in order. */
  private known(name: string): Float64Array {
    const isNull = this.payload.has(`${name}:null`) ? this.payload.column(`${name}:null`) : null;
    return Float64Array.from(this.payload.column(name) as Float64Array)
      .filter((value, row) => isNull?.[row] !== 1 && Number.isFinite(value))
      .sort();
  }
}

/** Values that part others in order into fifths, as far as they differ. */
function fifths(known: Float64Array): number[] {
  const ends = Array.from({ length: FIFTHS - 1 }, (_, index) => known[Math.floor(((index + 1) * known.length) / FIFTHS)]);
  return [...new Set(ends)].filter((end) => end > known[0]);
}
