/**
 * BERT's tokenizer (Devlin et al., 2019) as Hugging Face's `tokenizers` has it: `BertNormalizer`, `BertPreTokenizer`
 * and `WordPiece`, with the place of every token in its text.  Places count code points, as Python does.
 *
 * @typedef {{id: number, start: number, end: number}} Token
 * @typedef {{content: string, id: number, lstrip: boolean, rstrip: boolean, normalized: boolean, single_word: boolean}} Added
 */
import { decomposed, isControl, isMark, isPunctuation } from "./unicode.js";

// Blocks that have no blanks between words, each character a word: BERT's list, with the gap that tokenizers has in it.
const IDEOGRAPH =
  /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/u;
const BLANK = /\p{White_Space}/u;

/** Whether a `tokenizer.json` is one that `WordPiece` reads exactly. */
export function isWordPiece(/** @type {any} */ json) {
  return (
    json.model?.type === "WordPiece" &&
    json.normalizer?.type === "BertNormalizer" &&
    json.pre_tokenizer?.type === "BertPreTokenizer" &&
    json.added_tokens.every((/** @type {Added} */ token) => !token.normalized && !token.single_word)
  );
}

export class WordPiece {
  /** @param {any} json what `tokenizer.json` holds */
  constructor(json) {
    /** @type {Map<string, number>} */
    this.vocab = new Map(Object.entries(json.model.vocab));
    this.prefix = json.model.continuing_subword_prefix;
    this.longest = json.model.max_input_chars_per_word ?? 100;
    this.unknown = /** @type {number} */ (this.vocab.get(json.model.unk_token));
    this.rules = json.normalizer;
    /** @type {Added[]} */
    this.added = [...json.added_tokens].sort((a, b) => b.content.length - a.content.length);
    this.normalized = new Map(); // of a code point: there are few, and they come again
  }

  /**
   * A text's own tokens.
   * @param {string} text
   * @returns {Token[]}
   */
  encode(text) {
    const points = Array.from(text);
    return this.parts(points).flatMap((part) =>
      part.id === undefined ? this.plain(points, part.start, part.end) : [{ ...part, id: part.id }],
    );
  }

  /**
   * The text cut at added tokens that stand in it, such as "[SEP]".
   * @param {string[]} points
   * @returns {{start: number, end: number, id?: number}[]}
   */
  parts(points) {
    const found = [];
    let from = 0;
    for (let i = 0; i < points.length; i++) {
      const token = this.added.find(({ content }) => startsAt(points, i, content));
      if (!token) continue;
      let [start, end] = [i, i + Array.from(token.content).length];
      while (token.lstrip && start > from && BLANK.test(points[start - 1])) start--;
      while (token.rstrip && end < points.length && BLANK.test(points[end])) end++;
      found.push({ start: from, end: start }, { start, end, id: token.id });
      from = end;
      i = end - 1;
    }
    return [...found, { start: from, end: points.length }];
  }

  /**
   * @param {string[]} points
   * @param {number} start
   * @param {number} end
   */
  plain(points, start, end) {
    /** @type {Token[]} */
    const tokens = [];
    /** @type {{char: string, at: number}[]} */
    let word = [];
    const close = () => {
      if (word.length) this.pieces(word, tokens);
      word = [];
    };
    for (let at = start; at < end; at++) {
      for (const char of this.normal(points[at])) {
        if (BLANK.test(char)) close();
        else if (isPunctuation(char)) {
          close();
          word = [{ char, at }];
          close();
        } else word.push({ char, at });
      }
    }
    close();
    return tokens;
  }

  /**
   * What becomes of a code point; ideographs stand between blanks.
   * @param {string} point
   * @returns {string}
   */
  normal(point) {
    let found = this.normalized.get(point);
    if (found === undefined) {
      found = this.normalize(point);
      this.normalized.set(point, found);
    }
    return found;
  }

  /** @param {string} point */
  normalize(point) {
    const { clean_text, handle_chinese_chars, lowercase, strip_accents } = this.rules;
    let text = point;
    if (clean_text) {
      if (/[\t\n\r]/.test(text)) return " ";
      if (text === "\ufffd" || isControl(text)) return "";
      if (BLANK.test(text)) return " ";
    }
    if (handle_chinese_chars && IDEOGRAPH.test(text)) text = ` ${text} `;
    if (strip_accents ?? lowercase) text = Array.from(text, (char) => Array.from(decomposed(char)).filter((part) => !isMark(part)).join("")).join("");
    // Each by itself: of a whole text JavaScript ends words in another sigma.
    return lowercase ? Array.from(text, (char) => char.toLowerCase()).join("") : text;
  }

  /**
   * The longest pieces first; a word that has none for a part of it is unknown.
   * @param {{char: string, at: number}[]} word
   * @param {Token[]} tokens
   */
  pieces(word, tokens) {
    const all = { start: word[0].at, end: word[word.length - 1].at + 1 };
    const chars = word.map(({ char }) => char);
    const found = [];
    for (let start = 0; start < word.length; ) {
      let [end, id] = [word.length, /** @type {number | undefined} */ (undefined)];
      for (; word.length <= this.longest && end > start; end--) {
        id = this.vocab.get((start ? this.prefix : "") + chars.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) {
        tokens.push({ id: this.unknown, ...all });
        return;
      }
      found.push({ id, start: word[start].at, end: word[end - 1].at + 1 });
      start = end;
    }
    tokens.push(...found);
  }
}

/**
 * @param {string[]} points
 * @param {number} at
 * @param {string} content
 */
function startsAt(points, at, content) {
  if (points[at] !== String.fromCodePoint(/** @type {number} */ (content.codePointAt(0)))) return false;
  return points.slice(at, at + content.length).join("").startsWith(content);
}
