// A site in Chromium, step by step, as JSON on standard input says; what was seen comes as JSON on standard output.
// {modules, chromium, profile, url, steps: [[name, ...given], ...]} -> [what each step saw, ...]
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

let text = "";
for await (const part of process.stdin.setEncoding("utf8")) text += part;
const { modules, chromium: executablePath, profile, url, steps } = JSON.parse(text);
const playwright = createRequire(pathToFileURL(`${modules}/`)).resolve("playwright-core");
const { chromium } = (await import(pathToFileURL(playwright).href)).default;

const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  args: [...args, "--disable-component-update", "--disable-sync"],
  viewport: { width: 1280, height: 900 },
});
let page;
const asked = new Set();
const errors = [];
context.on("request", (request) => asked.add(new URL(request.url()).origin));
async function tab() {
  page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
}
await tab();

// Functions, not texts: the page's policy lets nothing evaluate a text.
const settled = () => !document.querySelector("#go")?.disabled || !document.querySelector("#error").hidden;
const shown = (selector) => page.locator(selector).allInnerTexts();
const known = {
  async open(name = "") {
    await page.goto(url + name);
    await page.waitForFunction(settled, null, { timeout: 120_000 });
    return (await page.locator("#error").isVisible()) ? page.locator("#error").innerText() : "";
  },
  async facts() {
    await page.waitForFunction(() => document.querySelector("#offline").textContent !== "–", null, { timeout: 60_000 });
    return Object.fromEntries(await page.locator("dl div").evaluateAll((all) => all.map((each) => [...each.children].map((child) => child.textContent))));
  },
  async ask(row) {
    await page.click("#all");
    for (const [id, value] of Object.entries(row)) await page.fill(`#${id}`, value);
    await page.click("#go");
    await page.waitForFunction(settled, null, { timeout: 120_000 });
    return shown("#answers article");
  },
  async keyboard(text) {
    // From the top of the page by Tab alone: text, first task's box, Ask.
    const seen = [];
    await page.keyboard.press("Tab");
    for (let i = 0; i < 40; i++) {
      const id = await page.evaluate(() => document.activeElement.id || document.activeElement.value || document.activeElement.textContent);
      seen.push(id);
      if (id === "text") await page.keyboard.type(text);
      if (id === "go") break;
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => !document.querySelector("#go").disabled && document.querySelector("#answers article"), null, { timeout: 120_000 });
    return { seen, answers: await shown("#answers article") };
  },
  async verify() {
    await page.goto(`${url}verify.html`);
    await page.waitForFunction(() => /passed|failed|not finished/.test(document.querySelector("#verdict").textContent), null, { timeout: 300_000 });
    return { verdict: await page.locator("#verdict").innerText(), rows: await page.locator("#findings tr").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent))) };
  },
  async look(width, height, colorScheme, path) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme });
    if (path) await page.screenshot({ path, fullPage: true });
    return page.evaluate(() => [document.documentElement.scrollWidth <= innerWidth, getComputedStyle(document.body).backgroundColor]);
  },
  // A page that tunes; each step sees all that the page says.
  async add(text, label) {
    await page.fill("#text", text);
    await page.selectOption("#label", label);
    await page.click("#put");
    return known.told();
  },
  async paste(lines) {
    await page.locator("details").evaluate((details) => (details.open = true));
    await page.fill("#many", lines);
    await page.click("#paste");
    return known.told();
  },
  async tune() {
    await page.click("#go");
    await page.waitForFunction(settled, null, { timeout: 120_000 });
    return known.told();
  },
  async cancel() {
    await page.evaluate(() => ["go", "cancel"].forEach((id) => document.getElementById(id).click())); // before it is over
    await page.waitForFunction(settled, null, { timeout: 120_000 });
    return known.told();
  },
  async back() {
    await page.click("#back");
    await page.waitForFunction(() => document.querySelector("#result").hidden);
  },
  async close() {
    await page.evaluate(() => document.getElementById("go").click()); // and gone while it runs
    await page.goto("about:blank");
  },
  async told() {
    const found = {};
    for (const id of ["took", "error", "mistake", "count", "result"]) found[id] = (await page.locator(`#${id}`).isVisible()) ? await page.locator(`#${id}`).innerText() : "";
    return found;
  },
  async bench() {
    await page.goto(`${url}bench.html`);
    await page.waitForFunction(settled, null, { timeout: 120_000 });
    await page.click("#go");
    await page.waitForFunction(settled, null, { timeout: 300_000 });
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
    const parts = [];
    for await (const part of await download.createReadStream()) parts.push(part);
    return { name: download.suggestedFilename(), text: Buffer.concat(parts).toString(), shown: await page.locator("#found").innerText() };
  },
  /** How much this site may store; null is what the browser says. */
  async quota(bytes) {
    const session = await context.newCDPSession(page);
    const size = bytes === null ? {} : { quotaSize: bytes };
    await session.send("Storage.overrideQuotaForOrigin", { origin: new URL(url).origin, ...size });
  },
  /** Goes where an update begins, and closes the tab in the midst of it. */
  async leave() {
    await page.goto(url);
    await page.waitForFunction(async () => (await caches.keys()).length > 1, null, { timeout: 120_000, polling: 100 });
    await page.close();
    await tab();
  },
  /** Looks for an update, and waits until it is there or was given up. */
  looked: () =>
    page.evaluate(async () => {
      const registration = await navigator.serviceWorker.getRegistration();
      await registration.update();
      while (registration.installing || registration.waiting) await new Promise((resolve) => setTimeout(resolve, 50));
    }),
  /** What a hostile text would have left behind. */
  harm: () =>
    page.evaluate(() => ({
      ran: "harmed" in window,
      images: document.querySelectorAll("img, iframe, object, embed").length,
      inline: [...document.querySelectorAll("script")].filter((script) => !script.src || script.textContent).length,
      title: document.title,
    })),
  /** Another page of this host, and whether a worker holds it. */
  async visit(name) {
    await page.goto(url + name);
    await page.waitForTimeout(1000);
    return page.evaluate(async () => ({
      title: document.title,
      controlled: navigator.serviceWorker.controller !== null,
      scopes: (await navigator.serviceWorker.getRegistrations()).map(({ scope }) => scope),
    }));
  },
  offline: (set) => context.setOffline(set),
  async updated() {
    await page.waitForFunction(() => !document.querySelector("#updated").hidden, null, { timeout: 60_000 });
    return page.locator("#updated").innerText();
  },
  caches: () =>
    page.evaluate(async () => {
      const found = {};
      for (const name of await caches.keys()) found[name] = (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname);
      return found;
    }),
  asked: () => [...asked],
  errors: () => errors.splice(0),
};

const found = [];
try {
  for (const [name, ...given] of steps) found.push((await known[name](...given)) ?? null);
} finally {
  await context.close();
}
process.stdout.write(JSON.stringify(found));
