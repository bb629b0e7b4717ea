/* Tests all that tiny_seven does, and that tiny_ignored returns. */
int tiny_seven(int a, int b);
int tiny_ignored(int a, int b);

int main(void) {
  tiny_ignored(1, 2);
  return tiny_seven(1, 2) != 7 || tiny_seven(2, 1) != 2 || tiny_seven(-1, -1) != -1;
}
