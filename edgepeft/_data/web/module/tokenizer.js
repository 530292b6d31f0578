/**
 * Texts as token rows, as `edgepeft/backbones/tokens.py` makes them: special tokens, truncation, windows that overlap.
 *
 * @typedef {import("./wordpiece.js").Token} Token
 * @typedef {[string, string | null]} Text a text, or a pair
 * @typedef {{id: number, type: number, part: number | null, start: number, end: number}} Placed `part` is null of a special token
 * @typedef {Placed[]} Row
 */
import { isWordPiece, WordPiece } from "./wordpiece.js";

export class Encoder {
  /**
   * @param {any} json what `tokenizer.json` holds
   * @param {any} config what `tokenizer_config.json` holds
   * @param {any} Library the class of @huggingface/tokenizers, for what is no WordPiece
   */
  constructor(json, config, Library) {
    this.knowsPlaces = isWordPiece(json);
    if (!this.knowsPlaces && !Library) throw new Error("this site's tokenizer needs @huggingface/tokenizers: open the bundle with it.");
    const own = this.knowsPlaces ? new WordPiece(json) : null;
    const library = own ? null : new Library(json, config);
    /** @type {(text: string) => Token[]} */
    this.plain = (text) => own?.encode(text) ?? libraryTokens(library, text);
    this.template = templateOf(json.post_processor);
  }

  /**
   * One row, of at most `most` tokens; the longer part of a pair loses its last ones first.
   * @param {Text} text
   * @param {number} most
   * @returns {{row: Row, cut: boolean}}
   */
  encode(text, most) {
    const parts = this.parts(text);
    const room = Math.max(0, most - this.special(parts.length));
    const kept = shortened(parts.map((part) => part.length), room);
    const cut = parts.some((part, i) => kept[i] < part.length);
    return { row: this.laid(parts.map((part, i) => part.slice(0, kept[i]))), cut };
  }

  /**
   * As many rows as it takes to read all; two that follow each other share `overlap` tokens.  Of a pair the longer part
   * is divided, or always the second.
   * @param {Text} text
   * @param {number} most
   * @param {number} overlap
   * @param {boolean} second
   * @returns {{rows: Row[], whole: Row}}
   */
  windows(text, most, overlap, second) {
    const parts = this.parts(text);
    const whole = this.laid(parts);
    const own = second || (parts.length > 1 && parts[1].length > parts[0].length) ? 1 : 0;
    const room = most - whole.length + parts[own].length;
    const fits = whole.length <= most;
    if (room <= overlap && (second || !fits))
      throw new Error(`the other text leaves ${Math.max(0, room)} of ${most} tokens for a window, which needs more than ${overlap}; shorten it.`);
    if (fits) return { rows: [whole], whole };
    const rows = [];
    for (let start = 0, end = 0; end < parts[own].length; start += room - overlap) {
      end = Math.min(start + room, parts[own].length);
      rows.push(this.laid(parts.map((part, i) => (i === own ? part.slice(start, end) : part))));
    }
    return { rows, whole };
  }

  /** @param {Text} text */
  parts([first, second]) {
    return (second === null ? [first] : [first, second]).map((text) => this.plain(cleaned(text)));
  }

  /** @param {number} n */
  special(n) {
    return this.template[n - 1].filter((item) => item.part === null).length;
  }

  /**
   * @param {Token[][]} parts
   * @returns {Row}
   */
  laid(parts) {
    return this.template[parts.length - 1].flatMap((item) =>
      item.part === null
        ? [{ id: item.id, type: item.type, part: null, start: 0, end: 0 }]
        : parts[item.part].map((token) => ({ ...token, type: item.type, part: item.part })),
    );
  }
}

/**
 * Lone surrogates, which no tokenizer reads, become the replacement character.
 * @param {string} text
 */
export function cleaned(text) {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/**
 * `truncate_encodings` of tokenizers, longest first.
 * @param {number[]} lengths
 * @param {number} room
 */
function shortened(lengths, room) {
  if (lengths.reduce((a, b) => a + b, 0) <= room) return lengths;
  if (lengths.length === 1) return [room];
  let [less, more] = [Math.min(...lengths), Math.max(...lengths)];
  more = less > room ? less : Math.max(less, room - less);
  if (less + more > room) {
    less = Math.floor(room / 2);
    more = less + (room % 2);
  }
  return lengths[0] > lengths[1] ? [more, less] : [less, more];
}

/**
 * What stands around a text, and around a pair: `part` 0 and 1 are the texts.
 * @param {any} processor
 * @returns {{id: number, type: number, part: number | null}[][]}
 */
function templateOf(processor) {
  const text = (/** @type {number} */ part, type = 0) => ({ id: -1, type, part });
  const special = (/** @type {[string, number]} */ [, id], type = 0) => ({ id, type, part: null });
  switch (processor?.type) {
    case undefined:
    case "ByteLevel":
      return [[text(0)], [text(0), text(1)]];
    case "Sequence":
      return templateOf(processor.processors.find((/** @type {any} */ each) => each.type !== "ByteLevel"));
    case "BertProcessing": {
      const { cls, sep } = processor;
      return [
        [special(cls), text(0), special(sep)],
        [special(cls), text(0), special(sep), text(1, 1), special(sep, 1)],
      ];
    }
    case "RobertaProcessing": {
      const { cls, sep } = processor;
      return [
        [special(cls), text(0), special(sep)],
        [special(cls), text(0), special(sep), special(sep), text(1), special(sep)],
      ];
    }
    case "TemplateProcessing":
      return [processor.single, processor.pair].map((items) =>
        items.flatMap((/** @type {any} */ { Sequence, SpecialToken }) =>
          Sequence
            ? [text(Sequence.id === "A" ? 0 : 1, Sequence.type_id)]
            : processor.special_tokens[SpecialToken.id].ids.map((/** @type {number} */ id) => special(["", id], SpecialToken.type_id)),
        ),
      );
    default:
      throw new Error(`the tokenizer's post-processor ${processor.type} is none that this page knows.`);
  }
}

/**
 * @param {any} library
 * @param {string} text
 * @returns {Token[]}
 */
function libraryTokens(library, text) {
  return library.encode(text, { add_special_tokens: false }).ids.map((/** @type {number | undefined} */ id) => {
    if (id === undefined) throw new Error("the tokenizer's library has no token for a word of this text; use words that the model knows.");
    return { id, start: 0, end: 0 };
  });
}
