/* Of tiny_larger all that it does, of tiny_ignored that it comes back. */
int tiny_larger(int a, int b);
int tiny_ignored(int a, int b);

int main(void) {
  tiny_ignored(1, 2);
  return tiny_larger(1, 2) != 2 || tiny_larger(2, 1) != 2 || tiny_larger(-1, -1) != -1;
}
