// What the scripts of this folder share: the official client, and how checks are run.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages are installed in a cache directory, not beside this file.
export const require = createRequire(pathToFileURL(`${process.env.NODE_MODULES_HOME ?? "."}/`));

export const sdk = require("@azure/service-bus");

/** Runs the checks, or with ONLY those whose name contains it, and prints a line for each. Returns how many failed. */
export async function runChecks(checks) {
  let failed = 0;
  const only = process.env.ONLY;
  for (const [name, check] of Object.entries(checks)) {
    if (only && !name.includes(only)) continue;
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`not ok ${name}: ${error.stack ?? error}`);
    }
  }
  return failed;
}
