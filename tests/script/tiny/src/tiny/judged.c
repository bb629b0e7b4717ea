/* What the tests judge, a function each: every mutant in here is caught. */
int tiny_larger(int a, int b) {
  if (a < b) return b;
  return a;
}

int tiny_three(void) { return 3; }
