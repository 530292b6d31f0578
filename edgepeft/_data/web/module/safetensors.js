/**
 * The format safetensors: a header of JSON behind its length, then the tensors' bytes.
 *
 * @typedef {{shape: number[], data: Float32Array | BigInt64Array}} Tensor
 * @typedef {{shape: number[], data: Float32Array}} Floats
 */

/** @param {Uint8Array} bytes @returns {{length: number, header: Record<string, any>}} */
function headerOf(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(0, true));
  return { length, header: JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))) };
}

/** What stands beside the tensors. @param {Uint8Array} bytes @returns {Record<string, string>} */
export const metadataOf = (bytes) => headerOf(bytes).header.__metadata__ ?? {};

/**
 * @param {Uint8Array} bytes
 * @returns {Map<string, Tensor>}
 */
export function readSafetensors(bytes) {
  const { length, header } = headerOf(bytes);
  const found = new Map();
  for (const [name, about] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [start, end] = about.data_offsets.map((/** @type {number} */ offset) => bytes.byteOffset + 8 + length + offset);
    const raw = bytes.buffer.slice(start, end); // a copy: what is not aligned cannot be viewed
    if (about.dtype === "F32") found.set(name, { shape: about.shape, data: new Float32Array(raw) });
    else if (about.dtype === "I64") found.set(name, { shape: about.shape, data: new BigInt64Array(raw) });
    else throw new Error(`the tensor ${name} is ${about.dtype}; F32 and I64 are known.`);
  }
  return found;
}

/**
 * @param {Record<string, Floats>} tensors
 * @param {Record<string, string>} metadata
 */
export function writeSafetensors(tensors, metadata) {
  /** @type {Record<string, any>} */
  const header = { __metadata__: metadata };
  let end = 0;
  for (const [name, { shape, data }] of Object.entries(tensors))
    header[name] = { dtype: "F32", shape, data_offsets: [end, (end += data.byteLength)] };
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(text.length / 8) * 8; // blanks behind it: tensors begin at a multiple of 8
  const bytes = new Uint8Array(8 + length + end).fill(32, 8, 8 + length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(text, 8);
  for (const [name, { data }] of Object.entries(tensors))
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + length + header[name].data_offsets[0]);
  return bytes;
}
