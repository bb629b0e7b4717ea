/* Functions whose results a test judges: every mutant in here is killed. */
int tiny_seven(int a, int b) {
  if (a < b) return 7;
  return a;
}

int tiny_three(void) { return 3; }
