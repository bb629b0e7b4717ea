/* Tests which shards of a parameter have equal values along an axis, and that many ranks take no long time. */
#include <string.h>
#include <time.h>
#include "layout/type.h"
#include "solve/shards.h"
#include "../made_parts.h"

/* A dump whose ranks have shards of one parameter, sharded along all axes. */
typedef struct sharded {
  ad_dump dump;
  ad_dump_param param;
  ad_dump_file *files;
  ad_parts parts;
} sharded;

static void make(sharded *s, const char *mesh) {
  *s = (sharded){.param = {.name = "w"}};
  assert_int_equal(ad_dump_mesh_parse(mesh, &s->dump.mesh), AD_OK);
  size_t world = (size_t)s->dump.mesh.world;
  s->files = made(world, sizeof *s->files);
  s->dump.sums = made(world, sizeof *s->dump.sums);
  s->dump.position = made(world, sizeof *s->dump.position);
  for (size_t rank = 0; rank < world; rank++) {
    s->dump.sums[rank] = &s->files[rank];
    ad_dump_mesh_position(&s->dump.mesh, (int64_t)rank, s->dump.position[rank]);
  }
  for (int axis = 0; axis < s->dump.mesh.count; axis++) s->param.types[axis] = AD_S(0);
  s->parts = (ad_parts){.dump = &s->dump, .param = &s->param};
}

/* Gives the rank's shard a checksum; NULL: its file says nothing of it. */
static void give(sharded *s, int64_t rank, const char *values, int constant) {
  json_decref(s->files[rank].shards);
  s->files[rank].shards =
      values ? json_pack("{s:{s:s, s:b}}", "w", "values", values, "constant", constant) : json_object();
}

static uint32_t equal(const sharded *s) {
  ad_shards found;
  assert_int_equal(ad_shards_compare(&s->parts, UINT32_MAX, &found), AD_OK);
  return found.equal;
}

static void drop(sharded *s) {
  for (int64_t rank = 0; rank < s->dump.mesh.world; rank++) json_decref(s->files[rank].shards);
  free(s->files);
  free(s->dump.sums);
  free(s->dump.position);
}

/* Values are compared among the ranks that differ on the axis alone. */
static void values_are_equal_along_an_axis(void **state) {
  enum { DP = 1, TP = 2 };
  sharded s;
  make(&s, "dp=2 tp=3");
  for (int64_t rank = 0; rank < 6; rank++) give(&s, rank, "a", 0);
  assert_int_equal(equal(&s), DP | TP);
  for (int64_t rank = 0; rank < 6; rank++) give(&s, rank, rank < 3 ? "a" : "b", 0);
  assert_int_equal(equal(&s), TP);
  for (int64_t rank = 0; rank < 6; rank++) give(&s, rank, rank % 3 == 1 ? "a" : "b", 0);
  assert_int_equal(equal(&s), DP);
  for (int64_t other = 0; other < 6; other++) { /* one rank with other values, one number, or none */
    for (int what = 0; what < 3; what++) {
      for (int64_t rank = 0; rank < 6; rank++) give(&s, rank, "a", 0);
      give(&s, other, what == 0 ? "b" : what == 1 ? "a" : NULL, what == 1);
      assert_int_equal(equal(&s), 0);
    }
  }
  drop(&s);
}

/* A thousand ranks: the work for a parameter grows with the ranks, not with their pairs. */
static void many_ranks_take_no_long_time(void **state) {
  enum { PARAMETERS = 1000 };
  sharded s;
  make(&s, "dp=1024");
  for (int64_t rank = 0; rank < 1024; rank++) give(&s, rank, rank == 1023 ? "b" : "a", 0);
  clock_t begin = clock();
  for (int i = 0; i < PARAMETERS; i++) assert_int_equal(equal(&s), 0);
  assert_true(clock() - begin < 4 * CLOCKS_PER_SEC);
  drop(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_equal_along_an_axis),
      cmocka_unit_test(many_ranks_take_no_long_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
