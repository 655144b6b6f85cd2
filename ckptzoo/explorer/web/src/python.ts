// Python code that selects what is selected here.

/** A string of Python; letters beyond ASCII and what cannot be seen are escaped. */
export function text(value: string): string {
  let quoted = "";
  for (const letter of value) {
    const code = letter.codePointAt(0)!;
    if (letter === '"' || letter === "\\") quoted += `\\${letter}`;
    else if (code >= 0x20 && code < 0x7f) quoted += letter;
    else if (code < 0x100) quoted += `\\x${code.toString(16).padStart(2, "0")}`;
    else if (code < 0x10000) quoted += `\\u${code.toString(16).padStart(4, "0")}`;
    else quoted += `\\U${code.toString(16).padStart(8, "0")}`;
  }
  return `"${quoted}"`;
}

export function list(values: (string | null)[]): string {
  return `[${values.map((value) => (value === null ? "None" : text(value))).join(", ")}]`;
}

/** One condition of zoo.where. */
export function term(column: string, operator: string, value: string): string {
  return `(${text(column)}, ${text(operator)}, ${value})`;
}
