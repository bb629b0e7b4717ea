/* Of tiny_seven all that it does, of tiny_ignored that it comes back. */
int tiny_seven(int a, int b);
int tiny_ignored(int a, int b);

int main(void) {
  tiny_ignored(1, 2);
  return tiny_seven(1, 2) != 7 || tiny_seven(2, 1) != 2 || tiny_seven(-1, -1) != -1;
}
