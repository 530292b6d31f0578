/** What a person typed and tuned here, by task, in IndexedDB: it stays when the page is closed, and leaves it never. */

const STORES = ["examples", "tuned"];

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** @returns {Promise<IDBDatabase>} */
function open() {
  const request = indexedDB.open(`edgepeft ${new URL("./", self.location.href).pathname}`, 1);
  request.onupgradeneeded = () => STORES.forEach((name) => request.result.createObjectStore(name));
  return done(request);
}

/**
 * @template T
 * @param {string} name
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} work
 * @returns {Promise<T>}
 */
async function within(name, mode, work) {
  const database = await open();
  try {
    const transaction = database.transaction(name, mode);
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("it was not stored"));
    });
    const [result] = await Promise.all([done(work(transaction.objectStore(name))), ended]); // a full disk aborts later
    return result;
  } finally {
    database.close();
  }
}

/** @param {string} name @param {string} task @returns {Promise<any>} */
export const load = (name, task) => within(name, "readonly", (store) => store.get(task));

/** @param {string} name @param {string} task @param {any} value */
export const save = (name, task, value) => within(name, "readwrite", (store) => store.put(value, task));

/** @param {string} name @param {string} task */
export const remove = (name, task) => within(name, "readwrite", (store) => store.delete(task));
