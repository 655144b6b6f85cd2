// Builds the bundle: `node build.mjs FOLDER` writes explorer.js, explorer.css and digests.json there. The same sources
// and lock file give the same bytes on every machine.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const folder = process.argv[2] ?? "bundle";
await build({
  entryPoints: { explorer: "src/main.ts" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["chrome120", "firefox120", "safari17"],
  charset: "ascii",
  legalComments: "none",
  banner: { js: "/* ckptzoo, Apache-2.0; d3, ISC, (c) Mike Bostock */" },
});
await build({ entryPoints: { explorer: "src/explorer.css" }, outdir: folder, minify: true, charset: "ascii" });

const sources = readdirSync("src").map((name) => `src/${name}`);
const names = [...sources, "package.json", "package-lock.json", "tsconfig.json", "build.mjs"].sort();
const digests = names.map((name) => [name, createHash("sha256").update(readFileSync(name)).digest("hex")]);
writeFileSync(`${folder}/digests.json`, `${JSON.stringify(Object.fromEntries(digests), null, 2)}\n`);
