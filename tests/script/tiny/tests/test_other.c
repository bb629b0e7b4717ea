/* Of tiny_three what it gives, of the others nothing. */
int tiny_three(void);

int main(void) { return tiny_three() != 3; }
