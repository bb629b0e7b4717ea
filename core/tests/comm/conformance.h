/* The conformance suite: what every backend that moves bytes must do. A test names a backend by how its ranks are
 * started; the suite runs every operation, kind of memory, dtype and odd size on it. */
#ifndef TESTS_COMM_CONFORMANCE_H
#define TESTS_COMM_CONFORMANCE_H
#include <stdint.h>

typedef struct conformance {
  const char *hostile;  // NULL, or the seed of backend hostile around the backend
  int staged;           // 1: ranks may not read each other's memory, so all data is staged
  int64_t ranks;
  const char *mesh;    // mesh of these ranks; NULL: "dp=RANKS"
  const char *axes;    // axes of the group; NULL: all
  uint64_t bytes_max;  // bytes of the largest value
} conformance;

void conforms(const conformance *suite);

#endif
