import type {Engine, Picture} from "./superres.js";

/** `<super-res>`: a face that is drawn from 8x8 pixels. Its attributes are described in README.md. */
export class SuperRes extends HTMLElement {
  /** The pixels of the input, RGB, row by row, instead of the attributes `src` and `pixels`. */
  cells: Uint8Array | null;
  /** The complete picture; null before it is there. */
  readonly picture: Picture | null;
  /** Draw again; return the picture, or null if there is no input, newer pixels came, or an error was told. */
  draw(): Promise<Picture | null>;
}

/** Return the engine that the elements of a base share. */
export function engineOf(base: string | URL): Promise<Engine>;

declare global {
  interface HTMLElementTagNameMap {
    "super-res": SuperRes;
  }
  interface HTMLElementEventMap {
    /** Bytes of the model, or the picture so far. */
    "superres-progress": CustomEvent<{loaded: number, total: number} | Picture>;
    "superres-drawn": CustomEvent<Picture>;
    "superres-error": CustomEvent<Error>;
  }
}
