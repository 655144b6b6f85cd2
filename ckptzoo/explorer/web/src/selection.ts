// Which members are selected: one bit a view in a mask per member, set where the view leaves the member out.

export interface View {
  /** Draw what changed. */
  redraw(): void;
}

export class Selection {
  readonly mask: Uint32Array;
  /** Members that no view leaves out. */
  count: number;
  private readonly views: View[] = [];
  private readonly settled: (() => void)[] = [];
  private bits = 0;
  private frame = 0;
  private timer = 0;

  constructor(readonly rows: number) {
    this.mask = new Uint32Array(rows);
    this.count = rows;
  }

  /** A bit for a view of its own. */
  bit(): number {
    return 1 << this.bits++;
  }

  add(view: View): void {
    this.views.push(view);
  }

  /** Call something when nothing changed for a while: what takes longer than a frame, or speaks. */
  whenSettled(call: () => void): void {
    this.settled.push(call);
  }

  /** Leave out the members for which a view says so; null takes its restriction away. */
  restrict(bit: number, leavesOut: ((row: number) => boolean) | null): void {
    const { mask, rows } = this;
    if (leavesOut === null) for (let row = 0; row < rows; row++) mask[row] &= ~bit;
    else for (let row = 0; row < rows; row++) mask[row] = leavesOut(row) ? mask[row] | bit : mask[row] & ~bit;
    let count = 0;
    for (let row = 0; row < rows; row++) if (mask[row] === 0) count++;
    this.count = count;
    this.changed();
  }

  /** Draw every view again with the next frame, once. */
  changed(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settled.forEach((call) => call()), 120);
  }

  /** Draw every view now. */
  draw(): void {
    this.frame = 0;
    const start = performance.now();
    for (const view of this.views) view.redraw();
    document.documentElement.dataset.redraw = (performance.now() - start).toFixed(2);
  }
}
