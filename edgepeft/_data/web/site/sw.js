/**
 * Keeps the site, so that it answers without a network.  This file names the manifest by its hash: with another manifest
 * it is another file, which the browser takes for an update.  What both versions have is not loaded again; what only the
 * older had is removed.  Every file but the weights is compared with its hash before it is stored; the weights are stored
 * on their way to the page, which compares them each time.
 */
const MANIFEST = "SHA256_OF_MANIFEST";
const SCOPE = self.registration.scope;
const PREFIX = `edgepeft ${SCOPE} `;
const CACHE = PREFIX + MANIFEST;
// Shared memory, and so threads, needs the first two; a worker has no policy but the one that comes with its script.
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Content-Security-Policy": "POLICY",
};

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && event.request.url.startsWith(SCOPE)) event.respondWith(answer(event));
});

async function install() {
  const manifest = await checked("site.json", MANIFEST);
  const site = await manifest.clone().json();
  const older = await kept();
  const cache = await caches.open(CACHE);
  try {
    for (const [name, { sha256 }] of Object.entries(site.files)) {
      const there = await older.get(sha256)?.();
      if (there) await cache.put(name, there);
      else if (name !== site.weights) await cache.put(name, await checked(name, sha256));
    }
    await cache.put("site.json", manifest);
  } catch (error) {
    await caches.delete(CACHE); // half of a site is of no use, and takes room
    throw error;
  }
  await self.skipWaiting();
}

async function activate() {
  for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== CACHE) await caches.delete(name);
  await self.clients.claim();
}

/** What older versions have stored, by hash. */
async function kept() {
  const found = new Map();
  for (const name of await caches.keys()) {
    if (!name.startsWith(PREFIX) || name === CACHE) continue;
    const cache = await caches.open(name);
    const site = await (await cache.match("site.json"))?.json();
    for (const [file, { sha256 }] of Object.entries(site?.files ?? {})) found.set(sha256, () => cache.match(file));
  }
  return found;
}

async function checked(name, sha256) {
  const digest = btoa(String.fromCharCode(...sha256.match(/../g).map((byte) => parseInt(byte, 16))));
  const response = await fetch(name, { cache: "no-cache", integrity: `sha256-${digest}` });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

async function answer(event) {
  const cache = await caches.open(CACHE);
  const url = new URL(event.request.url);
  url.search = url.hash = "";
  const name = url.href === SCOPE ? `${SCOPE}index.html` : url.href;
  const there = await cache.match(name);
  if (there) return guarded(there);
  const response = await fetch(event.request);
  const site = await (await cache.match("site.json"))?.json();
  if (response.ok && site && name === SCOPE + site.weights) {
    // Where there is no room the page is told by what it does not find here.
    event.waitUntil(cache.put(name, response.clone()).catch(() => {}));
  }
  return guarded(response);
}

function guarded(response) {
  if (!response.ok || response.redirected) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(response.body, { status: response.status, headers });
}
