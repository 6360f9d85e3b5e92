// Each kind of page has a program of its own: the build sets this, and leaves out what the other kind needs.
declare const COMPARISON: boolean;
