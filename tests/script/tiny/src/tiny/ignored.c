/* What tiny/tiny calls without a look at what comes back: every mutant of it lives. */
int tiny_ignored(int a, int b) { return a + 2 * b; /* a comment with a < b */ }
