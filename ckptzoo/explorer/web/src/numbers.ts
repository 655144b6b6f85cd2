// Numbers as people and as Python read them. d3-format writes U+2212 for a minus, which no number field takes.

import { formatLocale } from "d3-format";

const locale = formatLocale({ decimal: ".", thousands: ",", grouping: [3], currency: ["", ""], minus: "-" });
const general = locale.format(".5~g");
const short = locale.format(".3~g");
export const whole = locale.format(",");
const percent = locale.format(".1%");

export function shown(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Infinity" : "-Infinity";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return short(value).replace("e+", "e");
  return general(value);
}

export function share(value: number): string {
  return percent(value);
}

/** The number in a field; null where it is empty, undefined where it is no finite number. */
export function parsed(text: string): number | null | undefined {
  const plain = text.trim().replace(/\u2212/g, "-");
  if (plain === "") return null;
  const value = Number(plain);
  return Number.isFinite(value) ? value : undefined;
}

/** A number between two others that differs from it by less than a pixel and has few digits. */
export function rounded(value: number, pixel: number): number {
  if (!(pixel > 0)) return value;
  const power = Math.floor(Math.log10(pixel));
  return power >= 0 ? Math.round(value / 10 ** power) * 10 ** power : Number(value.toFixed(Math.min(100, -power)));
}
