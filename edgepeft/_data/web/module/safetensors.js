/**
 * The format safetensors: a header of JSON behind its length, then the tensors' bytes.
 *
 * @typedef {{shape: number[], data: Float32Array | BigInt64Array}} Tensor
 * @param {Uint8Array} bytes
 * @returns {Map<string, Tensor>}
 */
export function readSafetensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
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
