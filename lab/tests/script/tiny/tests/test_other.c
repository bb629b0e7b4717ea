/* Tests the result of tiny_three and nothing else. */
int tiny_three(void);

int main(void) { return tiny_three() != 3; }
