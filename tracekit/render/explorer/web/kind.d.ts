// Each kind of page has a program of its own: the build sets these, and leaves out what other kinds need.
declare const COMPARISON: boolean;
/** Every row is the log of a driver: steps and stages, and nothing of devices or threads. */
declare const LOGS: boolean;
/** The page has snapshots of memory. */
declare const MEMORY: boolean;
