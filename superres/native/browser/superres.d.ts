/** The release of the engine; a folder that `superres export web` wrote has to be of the same one. */
export const VERSION: string;
/** What every picture that a model drew has to be told with. */
export const NOTE: string;

/** How tokens are chosen and accepted: see `superres upscale --help`. */
export interface Way {
  /** "exact", the default, gives the picture of one token per step. */
  accept?: "exact" | "distance" | "top-k";
  /** Largest accepted difference in grey levels, for "distance"; 2 by default. */
  epsilon?: number;
  /** Rank within which "top-k" accepts; 2 by default. */
  topK?: number;
  /** Tokens proposed per step; 0, the default, is the fastest one with "exact", and else all heads. */
  blockSize?: number;
  /** 0, the default, draws the likeliest picture. */
  temperature?: number;
  /** Seed of the noise of samples. */
  seed?: number;
  /** 1, 2, ...: the number of the sample. */
  sample?: number;
  /** Side of the picture in pixels: that of a stage's output, by default the last one's. */
  size?: number;
  /** "none" by default; "mean" averages the pictures of the input and of the mirrored one, "sharp" three samples; both sharpen. */
  finish?: "none" | "mean" | "sharp";
}

/** A complete decode of a stage; finishing needs several of the first stages. */
export interface Stage {
  /** Side of its output in pixels. */
  side: number;
  /** RGB, row by row. */
  pixels: Uint8Array;
  tokens: number;
  /** Decoding iterations. */
  steps: number;
  /** Tokens accepted in each step. */
  accepted: number[];
  /** Proposals of each step. */
  proposed: number[][];
  /** Whether it is that of the mirrored input, and mirrored as that is. */
  isMirrored?: boolean;
}

/** A picture, complete or under way. */
export interface Picture {
  /** 0, 1, ...: the decode under way, of `stages`. */
  stage: number;
  /** Side of the stage's output in pixels. */
  side: number;
  /** RGB, row by row; 0 where nothing is decoded yet. */
  pixels: Uint8Array;
  /** Tokens decoded so far in this stage. */
  tokens: number;
  /** Decoding iterations so far in this stage. */
  steps: number;
  /** Whether it is the last one. */
  complete: boolean;
  /** Seconds of computing. */
  seconds: number;
  /** Whether it is that of the mirrored input, and mirrored as that is. */
  isMirrored?: boolean;
  /** Of the complete picture: the first 12 digits of the SHA-256 of its pixels. */
  digest?: string;
  /** Of the complete picture: all decodes that it needed; the last one's pixels are those before sharpening. */
  stages?: Stage[];
}

/** What is drafted: the first stage's picture, verified while somebody else proposes. */
export interface Drafting {
  /** Those that earlier calls committed: pixel values in the order of a picture's. */
  tokens?: Uint8Array;
  /** Who proposes: the prediction heads, the pixel on the left, or these guesses. */
  by?: "heads" | "left" | number[];
  /** Largest accepted difference in grey levels. */
  epsilon?: number;
  /** Tokens of a call: the model's next one, and guesses. */
  blockSize?: number;
  /** Calls at most. */
  calls?: number;
}

/** What calls of a draft committed. */
export interface Drafted {
  /** Tokens accepted in each call. */
  accepted: number[];
  /** Those that the calls committed. */
  tokens: number[];
  /** The model's next token, and the heads' proposals after it; none at the end. */
  pending: number[];
  /** Seconds of the calls. */
  seconds: number;
  /** Whether these are all calls. */
  complete: boolean;
}

/** What is loaded. */
export interface Info {
  checkpoint: string;
  revision: string;
  /** SHA-256 of the weights. */
  digest: string;
  /** The module of WebAssembly that this browser runs. */
  variant: string;
  /** Size of what was loaded. */
  bytes: number;
  /** Sides in pixels, and the largest number of tokens proposed per step. */
  stages: {source: number, target: number, blockSize: number}[];
  /** XMP packet of pictures that a model drew, for `marked`. */
  mark: string;
}

/** The engine in a Worker of its own. It decodes one picture at a time, in the order of the calls. */
export interface Engine {
  readonly info: Info;
  /**
   * Draw a picture, and yield it while it is decoded, about ten times per second. An aborted signal ends the drawing.
   * @param cells - the pixels of the input, RGB, row by row
   */
  upscale(cells: Uint8Array, way?: Way, options?: {signal?: AbortSignal}): AsyncGenerator<Picture, void, void>;
  /**
   * Verify what somebody proposes for the first stage, and yield what is accepted, about ten times per second.
   * @param cells - the pixels of the input, RGB, row by row
   */
  draft(cells: Uint8Array, drafting?: Drafting, options?: {signal?: AbortSignal}): AsyncGenerator<Drafted, void, void>;
  /** End the Worker. */
  close(): void;
}

/** The engine without a Worker. */
export interface Core {
  readonly info: Info;
  /** Check a way and an input, and return the way with the values that it leaves out. */
  complete(cells: Uint8Array, given: Way): Required<Way>;
  /** Decode, and yield pictures at least once per slice of time; the last one is complete. */
  upscale(cells: Uint8Array, given?: Way): Generator<Picture, void, void>;
  /** Verify what somebody proposes, and yield what is accepted at least once per slice of time; the last one is complete. */
  draft(cells: Uint8Array, drafting: Drafting): Generator<Drafted, void, void>;
}

/**
 * Load an engine into a Worker. An error says by `isMissing` that a file could not be fetched, not that it is of no use.
 * @param base - address of the exported folder, of the same origin as the page
 * @param options - `onProgress` gets bytes; `total` is 0 if unknown
 */
export function load(
  base: string | URL, options?: {onProgress?: (loaded: number, total: number) => void, signal?: AbortSignal},
): Promise<Engine>;

/**
 * Make an engine without a Worker, in node too.
 * @param read - returns a file of the exported folder
 * @param variants - the modules to try, the fastest first
 */
export function open(read: (name: string) => Promise<Uint8Array>, variants?: string[]): Promise<Core>;

/**
 * Return a picture that a model drew, a PNG file in a data URI, with the mark that says so, and how it was made.
 * @param uri - what `canvas.toDataURL()` returns
 * @param mark - an XMP packet: that of `Info`
 */
export function marked(uri: string, mark: string, record: object): string;
