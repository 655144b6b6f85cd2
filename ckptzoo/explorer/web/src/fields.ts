// Two fields, from and to: what a brush does, by keyboard and exactly.

import { element } from "./dom";
import { parsed } from "./numbers";
import { Range } from "./state";

export class RangeFields {
  readonly root: HTMLElement;
  private readonly low: HTMLInputElement;
  private readonly high: HTMLInputElement;

  constructor(name: string, label: string, changed: (range: Range) => void) {
    this.low = field(`${name}, from`);
    this.high = field(`${name}, to`);
    const take = () => {
      const [low, high] = [this.low, this.high].map((input) => {
        const value = parsed(input.value);
        input.setAttribute("aria-invalid", String(value === undefined));
        return value;
      });
      if (low !== undefined && high !== undefined) changed({ low, high });
    };
    for (const input of [this.low, this.high]) input.addEventListener("change", take);
    this.root = element("span", { class: "range" }, element("span", {}, label), this.low, "to", this.high);
  }

  show(range: Range): void {
    this.low.value = range.low === null ? "" : String(range.low);
    this.high.value = range.high === null ? "" : String(range.high);
    for (const input of [this.low, this.high]) input.setAttribute("aria-invalid", "false");
  }
}

function field(label: string): HTMLInputElement {
  return element("input", { type: "text", inputmode: "decimal", size: "8", autocomplete: "off", "aria-label": label });
}
