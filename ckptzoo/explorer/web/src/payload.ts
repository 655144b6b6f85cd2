// The data of the page: base64 of gzip of a header and columns, as ckptzoo/explorer/payload.py writes them.

export type Column = Float64Array | Float32Array | Int32Array | Int16Array | Uint32Array | Uint8Array;

export interface MeasureFacts {
  name: string;
  title: string;
  doc: string;
  scale: "linear" | "log";
  /** Whether zoo.where knows it; a range of another one is copied as ids. */
  is_column: boolean;
  edges: number[];
  counts: number[];
  missing: number;
  nan: number;
  infinite: number;
  beyond: number;
}

export interface CategoryFacts {
  name: string;
  doc: string;
  texts: string[];
  counts: number[];
  missing: number;
  /** Whether zoo.where knows it; a choice of another one is copied as ids. */
  is_column: boolean;
}

export interface DetailFacts {
  name: string;
  doc: string;
  texts: string[] | null;
}

export interface PanelFacts {
  variant: string;
  column: string;
  steps: [number, number];
  ratios: [number, number];
  members: number;
  left_out: number;
  basis: number;
}

export interface LayerFacts {
  name: string;
  parameters: number;
  panels: PanelFacts[];
}

interface Place {
  type: string;
  start: number;
  count: number;
  planes: boolean;
}

export interface Header {
  version: number;
  name: string;
  revision: string;
  code: string;
  rows: number;
  total: number;
  measures: MeasureFacts[];
  categories: CategoryFacts[];
  details: DetailFacts[];
  constants: Record<string, string | number | boolean | null>;
  layers: LayerFacts[];
  trajectories: { members: number; total: number } | null;
  columns: Record<string, Place>;
}

const ARRAYS = {
  "<f8": Float64Array,
  "<f4": Float32Array,
  "<i4": Int32Array,
  "<i2": Int16Array,
  "<u4": Uint32Array,
  "|u1": Uint8Array,
};

/** The header, and columns that are made when they are asked for. */
export class Payload {
  private readonly text: string;
  private readonly ends: Uint32Array;
  private readonly made = new Map<string, Column>();

  private constructor(
    readonly header: Header,
    private readonly buffer: ArrayBuffer,
    private readonly start: number,
  ) {
    // the strings of all ids are pieces of one text
    this.text = new TextDecoder().decode(this.column("id_bytes") as Uint8Array);
    this.ends = new Uint32Array(header.rows + 1);
    this.column("id_lengths").forEach((length, row) => (this.ends[row + 1] = this.ends[row] + length));
  }

  static async decode(base64: string): Promise<Payload> {
    const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const buffer = await new Response(stream).arrayBuffer();
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as Header;
    return new Payload(header, buffer, 4 + length);
  }

  has(name: string): boolean {
    return name in this.header.columns;
  }

  column(name: string): Column {
    let column = this.made.get(name);
    if (column === undefined) {
      const { type, start, count, planes } = this.header.columns[name];
      const make = ARRAYS[type as keyof typeof ARRAYS];
      if (planes) {
        const width = make.BYTES_PER_ELEMENT;
        const from = new Uint8Array(this.buffer, this.start + start, count * width);
        const bytes = new Uint8Array(count * width);
        for (let plane = 0; plane < width; plane++)
          for (let row = 0, at = plane; row < count; row++, at += width) bytes[at] = from[plane * count + row];
        column = new make(bytes.buffer);
      } else {
        column = new make(this.buffer, this.start + start, count);
      }
      this.made.set(name, column);
    }
    return column;
  }

  id(row: number): string {
    return this.text.slice(this.ends[row], this.ends[row + 1]);
  }
}
