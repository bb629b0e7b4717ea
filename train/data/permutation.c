/* A permutation that needs no table: a generalised Feistel network over Z_a x Z_b with cycle walking (Black and
 * Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), whose rounds add random numbers of Philox. data.h has
 * the formula. */
#include "data/permutation.h"

#include <math.h>
#include "base/random.h"

enum { ROUNDS = 8 };

/* Returns the smallest number whose square is n or more. */
static int64_t root_above(int64_t n) {
  int64_t root = (int64_t)sqrt((double)n);  // rounding may make it one too large or too small
  while (root > 1 && (root - 1) * (root - 1) >= n) root--;
  while (root * root < n) root++;
  return root;
}

/* Returns the image of x under a permutation of [0, a * b): the Feistel network on the pair (x / b, x % b). */
static int64_t network(uint64_t key, int64_t a, int64_t b, int64_t x) {
  int64_t left = x / b, right = x % b;
  for (uint64_t round = 0; round < ROUNDS; round += 2) {
    left = (left + ad_random_below(key, round, (uint64_t)right, a)) % a;
    right = (right + ad_random_below(key, round + 1, (uint64_t)left, b)) % b;
  }
  return left * b + right;
}

/* Applies the permutation of [0, a * b) until the result is inside [0, n). This ends, because i itself is on the same
 * cycle. */
int64_t ad_permuted(uint64_t key, int64_t n, int64_t i) {
  int64_t a = root_above(n), b = (n + a - 1) / a, x = i;
  do x = network(key, a, b, x);
  while (x >= n);
  return x;
}
