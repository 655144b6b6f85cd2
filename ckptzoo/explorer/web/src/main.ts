// The page of a zoo: views of its members that select together.

import { Bars, SHOWN } from "./bars";
import { Colouring } from "./colouring";
import { copy, showCode } from "./copying";
import { Details } from "./details";
import { button, element, quoted, section } from "./dom";
import { Histogram } from "./histogram";
import { whole } from "./numbers";
import { LayerFacts, Payload } from "./payload";
import { list, term } from "./python";
import { Scatter } from "./scatter";
import { Selection } from "./selection";
import { Fragment } from "./state";
import { Table } from "./table";
import { Trajectories } from "./trajectories";

const TITLES: Record<string, string> = {
  method: "Method",
  contributor: "Contributor",
  recipe: "Recipe",
  license: "Licence",
  dataset: "Data set",
  mode: "Mode",
};
/** How columns are called that hold the part of a split. */
const SPLIT = "split.";

function start(payload: Payload): void {
  const { header } = payload;
  const selection = new Selection(header.rows);
  const fragment = new Fragment();
  // nothing is written before the state that the address has is read
  let isRestoring = true;
  const changed = () => {
    if (!isRestoring) fragment.write();
  };

  const histograms = header.measures.map((facts) => new Histogram(payload, facts, selection, changed));
  const titles = (name: string) =>
    header.measures.find((facts) => facts.name === name)?.title ??
    TITLES[name] ??
    (name.startsWith(SPLIT) ? `Split ${name.slice(SPLIT.length)}` : name);
  // points are coloured by modes, of which there are often dozens with long names
  const drawn = header.categories.filter((facts) => facts.name !== "mode" || facts.texts.length <= SHOWN);
  const bars = drawn.map((facts) => new Bars(payload, facts, titles(facts.name), selection, changed));
  const colouring = new Colouring(payload, titles, () => selection.changed(), changed);
  const variants = [...new Set(header.layers.flatMap((layer) => layer.panels.map((panel) => panel.variant)))];
  const panels = variants.map((variant) => {
    const title = variant === "raw" ? "As trained (raw)" : `Without symmetries (${variant})`;
    return new Scatter(payload, variant, title, selection, colouring, changed, (row) => details.show(row));
  });
  const trajectories = header.trajectories === null ? null : new Trajectories(payload, selection);
  const ring = (row: number) => [...histograms, ...panels, ...(trajectories === null ? [] : [trajectories])].forEach((view) => view.ring(row));

  // what is selected, and how to copy it
  const status = element("p", { role: "status", id: "message" });
  // what changes with every frame is read out when it stays
  const announced = element("p", { role: "status", id: "announced", class: "hidden" });
  const say = (text: string) => (status.textContent = text);
  const details = new Details(payload, ring, changed, say);
  const code = () => codeOf(payload, selection, histograms, bars, panels);
  const field = element("textarea", { readonly: "", rows: "3", spellcheck: "false", "aria-label": "Code of the selection" });
  const count = element("strong", { id: "count" });
  selection.add({ redraw: () => (count.textContent = `${whole(selection.count)} of ${whole(header.rows)} members`) });
  selection.whenSettled(() => {
    showCode(field, code());
    const text = `${whole(selection.count)} of ${whole(header.rows)} members are selected.`;
    if (announced.textContent !== text) announced.textContent = text;
  });
  const ids = () => idsOf(payload, selection).join("\n");
  const clear = () => {
    isRestoring = true;
    for (const part of [...histograms, ...bars, ...panels]) part.restore(null);
    isRestoring = false;
    changed();
  };
  section("selection").append(
    element("p", {}, count),
    announced,
    element(
      "div",
      { class: "copy" },
      field,
      button("Copy selection", () => copy(field, code(), say)),
      button("Copy ids", () => copy(field, ids(), say)),
      button("Clear all", clear),
    ),
    status,
  );

  fill("measures", histograms, "No member has a figure.");
  fill("categories", bars, "No row says who made it, by which recipe, or under which licence.");
  if (panels.length > 0) {
    const layers = new LayerChoice(header.layers, panels, changed);
    section("components").append(layers.root, colouring.root);
    fragment.add("layer", layers);
    layers.show(0);
  }
  // beside the pictures, so that whoever chooses a member there reads its row
  fill("components", panels.length > 0 ? [...panels, details] : [], "There are no two members whose weights can be shown.");
  fill("trajectories", trajectories === null ? [] : [trajectories], "No member has several steps with an accuracy.");
  const table = new Table(payload, selection, changed, (row) => {
    details.show(row);
    details.root.focus();
  });
  section("members").append(table.root);
  if (panels.length === 0) section("components").append(details.root);

  for (const histogram of histograms) fragment.add(histogram.facts.name, histogram);
  for (const bar of bars) fragment.add(bar.facts.name, bar);
  fragment.add("colour", colouring);
  for (const panel of panels) fragment.add(`pca.${panel.variant}`, panel);
  fragment.add("table", table);
  fragment.add("id", details);
  const read = () => {
    isRestoring = true;
    fragment.read();
    isRestoring = false;
  };
  addEventListener("hashchange", () => {
    // the link that skips to the views is no state
    if (location.hash === "#views") fragment.write();
    else read();
  });
  read();
  const repaint = () => {
    panels.forEach((panel) => panel.repaint());
    colouring.redraw();
    selection.changed();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("(forced-colors: active)").addEventListener("change", repaint);
  selection.draw();
  showCode(field, code());
  document.documentElement.dataset.ready = performance.now().toFixed(1);
}

/** Which layer the panels show. */
class LayerChoice {
  readonly root: HTMLElement;
  private readonly choice = element("select", { id: "layer" });

  constructor(
    private readonly layers: LayerFacts[],
    private readonly panels: Scatter[],
    changed: () => void,
  ) {
    layers.forEach((layer, index) => this.choice.append(element("option", { value: String(index) }, `${layer.name} (${whole(layer.parameters)} weights)`)));
    this.choice.addEventListener("change", () => {
      this.show(Number(this.choice.value));
      changed();
    });
    this.root = element("p", { class: "controls" }, element("label", { for: "layer" }, "Layer"), this.choice);
  }

  show(index: number): void {
    this.choice.value = String(index);
    this.panels.forEach((panel) => panel.show(this.layers[index]));
  }

  state(): string | null {
    const index = Number(this.choice.value);
    return index === 0 ? null : this.layers[index].name;
  }

  restore(text: string | null): void {
    const index = Math.max(0, this.layers.findIndex((layer) => layer.name === text));
    if (index !== Number(this.choice.value)) this.show(index);
  }
}

function fill(id: string, views: { root: HTMLElement }[], none: string): void {
  section(id).append(views.length > 0 ? element("div", { class: "grid" }, ...views.map((view) => view.root)) : element("p", {}, none));
}

function idsOf(payload: Payload, selection: Selection): string[] {
  const ids: string[] = [];
  for (let row = 0; row < selection.rows; row++) if (selection.mask[row] === 0) ids.push(payload.id(row));
  return ids;
}

/** What selects the same members in a program: conditions where the metadata have them, else their ids. */
function codeOf(payload: Payload, selection: Selection, histograms: Histogram[], bars: Bars[], panels: Scatter[]): string {
  const { code } = payload.header;
  const terms = [...histograms.map((histogram) => histogram.terms()), ...bars.map((bar) => bar.terms())];
  if (panels.some((panel) => panel.isOn) || terms.includes(null)) return `${code}.where([${term("id", "in", list(idsOf(payload, selection)))}])`;
  const listed = terms.flat();
  return listed.length === 0 ? code : `${code}.where([${listed.join(", ")}])`;
}

const source = document.getElementById("payload")!;
Payload.decode(source.textContent!)
  .then((payload) => {
    // the text is not needed any more, and is the largest thing of the page
    source.textContent = "";
    start(payload);
  })
  .catch((error: unknown) => {
    section("selection").append(element("p", { role: "alert" }, "This page cannot be shown: ", quoted(String(error))));
    throw error;
  });
