// Chromium step by step, as JSON on standard input says; what each step gave comes as JSON on standard output.
// {modules, chromium, profile, url, steps: [[name, ...given], ...]}; with a profile, what it keeps is there the next time.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

let text = "";
for await (const part of process.stdin.setEncoding("utf8")) text += part;
const { modules, chromium: executablePath, profile, url, steps } = JSON.parse(text);
const playwright = createRequire(pathToFileURL(`${modules}/`)).resolve("playwright-core");
const { chromium } = (await import(pathToFileURL(playwright).href)).default;

const switches = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
const args = [...switches, "--disable-component-update", "--disable-sync", "--js-flags=--expose-gc"];
const browser = profile ? null : await chromium.launch({ executablePath, args });
const context = browser ? await browser.newContext() : await chromium.launchPersistentContext(profile, { executablePath, args });
const page = await context.newPage();
const errors = [];
page.on("pageerror", (error) => errors.push(error.message));
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));

const known = {
  async open(path) {
    await page.goto(url + path);
    await page.waitForFunction(() => globalThis.bench);
    return { isolated: await page.evaluate(() => crossOriginIsolated), agent: await page.evaluate(() => navigator.userAgent) };
  },
  do: (name, ...given) => page.evaluate(([name, given]) => globalThis.bench(name, given), [name, given]),
  wait: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
  /** Proportional bytes of the pages' processes: what several processes map is divided among them. */
  async memory() {
    const session = await browser.newBrowserCDPSession();
    const { processInfo } = await session.send("SystemInfo.getProcessInfo");
    const pages = processInfo.filter(({ type }) => type === "renderer");
    return pages.reduce((sum, { id }) => sum + 1024 * Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${id}/smaps_rollup`, "utf8"))[1]), 0);
  },
  /** Milliseconds from the start of a navigation to an answer. */
  async first(path) {
    await page.goto(url + path);
    return (await page.waitForFunction(() => globalThis.answered, null, { timeout: 120_000 })).jsonValue();
  },
};

const found = [];
try {
  for (const [name, ...given] of steps) found.push((await known[name](...given)) ?? null);
} catch (error) {
  throw new Error([error.message, ...errors].join("\n"));
} finally {
  await context.close();
  await browser?.close();
}
process.stdout.write(JSON.stringify(found));
