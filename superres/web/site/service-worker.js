// Keep the page's files, so that it works offline. superres/web/site.py writes NAME, a digest of the export, FILES, and those for
// LATER, which are kept when the visitor has needed them: the engine's, and the finder's. A new export takes over when no page of the
// old one is open.
const PREFIX = `superres ${self.registration.scope} `, CACHE = PREFIX + NAME;

self.addEventListener("install", event => event.waitUntil(caches.open(CACHE).then(cache =>
  cache.addAll(FILES.map(file => new Request(file, {cache: "no-cache"}))))));

self.addEventListener("activate", event => event.waitUntil((async () => {
  for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== CACHE) await caches.delete(name);
  await self.clients.claim();
})()));

self.addEventListener("fetch", event => {
  if (event.request.method !== "GET" || !event.request.url.startsWith(self.registration.scope)) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE), kept = await cache.match(event.request, {ignoreSearch: true, ignoreVary: true});
    if (kept) return kept;
    const answer = await fetch(event.request);
    if (answer.status === 200 && LATER.some(name => event.request.url === self.registration.scope + name)) event.waitUntil(cache.put(event.request, answer.clone()));
    return answer;
  })());
});
