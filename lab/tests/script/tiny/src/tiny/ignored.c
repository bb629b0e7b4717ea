/* tiny_ignored is called by a test that ignores its result: every mutant of it survives. */
int tiny_ignored(int a, int b) { return a + 2 * b; /* a comment with a < b */ }
