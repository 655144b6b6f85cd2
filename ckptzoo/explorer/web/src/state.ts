// The state of all views in the fragment of the page's address, so that a link shows the same.

export interface Stateful {
  /** The state as text; null where it is as at the beginning. */
  state(): string | null;
  /** Take a state, as `state` gave it or as somebody typed it; null for that at the beginning. */
  restore(text: string | null): void;
}

export class Fragment {
  private readonly parts = new Map<string, Stateful>();

  add(name: string, part: Stateful): void {
    this.parts.set(name, part);
  }

  read(): void {
    const values = new Map<string, string>();
    for (const pair of location.hash.slice(1).split("&")) {
      const at = pair.indexOf("=");
      if (at > 0) values.set(decoded(pair.slice(0, at)), decoded(pair.slice(at + 1)));
    }
    for (const [name, part] of this.parts) part.restore(values.get(name) ?? null);
  }

  write(): void {
    const pairs: string[] = [];
    for (const [name, part] of this.parts) {
      const value = part.state();
      if (value !== null) pairs.push(`${encodeURIComponent(name)}=${encodeURIComponent(value)}`);
    }
    try {
      history.replaceState(null, "", `#${pairs.join("&")}`);
    } catch {
      // browsers that let no page of this kind change its address: the page works without
    }
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export interface Range {
  low: number | null;
  high: number | null;
}

export const EVERYTHING: Range = { low: null, high: null };

export function isEverything(range: Range): boolean {
  return range.low === null && range.high === null;
}

export function rangeText(range: Range): string {
  return `${range.low ?? ""}..${range.high ?? ""}`;
}

export function rangeOf(text: string): Range {
  const [low, high] = text.split("..").map((end) => (end.trim() === "" ? null : Number(end)));
  const kept = (end: number | null | undefined) => (end === null || end === undefined || !Number.isFinite(end) ? null : end);
  return { low: kept(low), high: kept(high) };
}
