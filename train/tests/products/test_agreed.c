/* Tests that ranks that join a world agree on a way to compute matrix products that all of them have. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "products/products.h"
#include "comm/shm/file.h"
#include "comm/shm/join.h"

enum { RANKS = 3 };

/* Joins in a child process, which exits with 0 if the ranks agreed on that library. */
static int join(int fd, shm_control *control, uint32_t rank, const char *wanted, ad_library agreed) {
  shm_world *world;
  setenv("ADDEND_PRODUCTS", wanted, 1);
  if (ad_shm_join(fd, control, rank, NULL, &world)) return 2;
  ad_products own = ad_products_own(), used = ad_products_in_use();
  return used.library != agreed || used.units != own.units || used.onednn != own.onednn;
}

static void agree(const char *const wanted[RANKS], ad_library agreed) {
  int fd, status;
  shm_control *control;
  pid_t children[RANKS];
  assert_int_equal(ad_shm_make(RANKS, 0, 0, &fd, &control), AD_OK);
  control->launcher = getpid();
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    children[rank] = fork();
    if (!children[rank]) _exit(join(fd, control, rank, wanted[rank], agreed));
    assert_true(children[rank] > 0);
  }
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
    assert_int_equal(status, 0);
  }
  ad_shm_unmake(fd, control);
}

static void ranks_use_one_library_where_all_want_it(void **state) {
  agree((const char *const[RANKS]){"openblas", "openblas", "openblas"}, AD_LIBRARY_OPENBLAS);
}

static void ranks_that_want_different_ones_go_by_the_table(void **state) {
  agree((const char *const[RANKS]){"openblas", "", "openblas"}, AD_LIBRARY_BY_TABLE);
  agree((const char *const[RANKS]){"", "", "openblas"}, AD_LIBRARY_BY_TABLE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_use_one_library_where_all_want_it),
      cmocka_unit_test(ranks_that_want_different_ones_go_by_the_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
