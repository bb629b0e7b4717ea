/* Tests checkpoints: any mesh reads what any other mesh wrote; a damaged checkpoint is recognised and skipped; a full
 * disk leaves earlier checkpoints intact. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/checkpoint.h"
#include "addend/safetensors.h"
#include "array/part.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_folder.h"
#include "files/file.h"
#include "forge.h"
#include "ranks.h"
#include "says.h"

/* ---- the values that are saved, and their layouts ---- */

enum { VALUES = 6, NUMEL_MAX = 64 };
typedef struct value {
  const char *name;
  ad_dtype dtype;
  ad_shape shape;
} value;
static const value values[VALUES] = {{"matrix", AD_F32, {2, {7, 5}}}, {"cube", AD_F64, {3, {3, 4, 2}}},
                                     {"short", AD_F32, {1, {2}}},     {"narrow", AD_BF16, {1, {6}}},
                                     {"scalar", AD_F32, {0, {0}}},    {"empty", AD_F32, {2, {0, 3}}}};

typedef struct world {
  int64_t ranks;
  const char *mesh, *many, *one; /* layouts of values with several dimensions and with one */
} world;
static const world worlds[] = {
    {1, "dp_shard=1", "", ""},
    {3, "dp_replicate=3 dp_shard=1", "dp=R", "dp=I"},
    {4, "dp_replicate=2 dp_shard=2", "dp_replicate=R dp_shard=S0", "dp_replicate=I dp_shard=S0"},
    {3, "dp_shard=3", "dp_shard=S1", "dp_shard=S0"},
    {4, "cp=2 tp=2", "cp=S0z tp=S1", "cp=S0 tp=S0"},
    {5, "dp_shard=5", "dp_shard=S0", "dp_shard=R"}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static char folder[64];

typedef struct side {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_array arrays[VALUES];
  ad_checkpoint_value list[VALUES];
  ad_checkpoint_number numbers[1];
  ad_checkpoint_state state;
} side;

// Each element is computed from the number of its value, its index and the step.
static void full_of(int v, int64_t step, void *out) {
  double elements[NUMEL_MAX];
  int64_t numel = ad_shape_numel(&values[v].shape);
  for (int64_t i = 0; i < numel; i++) elements[i] = (double)(100 * v + i + step);
  ad_cast(out, values[v].dtype, elements, AD_F64, (size_t)numel);
}

static void part_of(const side *s, int v, int64_t step, void *out) {
  double full[NUMEL_MAX];
  ad_layout uncut = ad_layout_all(s->mesh, AD_R);
  ad_part all, mine;
  full_of(v, step, full);
  ad_part_of(&uncut, &values[v].shape, ad_comm_rank(s->comm), &all);
  ad_part_of(&s->arrays[v].layout, &values[v].shape, ad_comm_rank(s->comm), &mine);
  ad_part_copy(out, &mine, full, &all, &mine, ad_dtype_size(values[v].dtype));
}

static void fill(side *s, int64_t step) {
  for (int v = 0; v < VALUES; v++) part_of(s, v, step, s->arrays[v].data);
  s->state.step = step;
  s->numbers[0].value = 1000 + step;
}

static int holds(const side *s, int64_t step) {
  double expected[NUMEL_MAX];
  int good = s->state.step == step && s->numbers[0].value == 1000 + step;
  for (int v = 0; v < VALUES; v++) {
    part_of(s, v, step, expected);
    good &= !memcmp(expected, s->arrays[v].data, ad_array_bytes(&s->arrays[v]));
  }
  return good;
}

static void spoil(side *s) {
  for (int v = 0; v < VALUES; v++) memset(s->arrays[v].data, 0xff, ad_array_bytes(&s->arrays[v]));
  s->state.step = -7;
}

static void open_side(ad_comm *comm, const world *w, side *s) {
  *s = (side){.comm = comm, .numbers = {{"number", 0}}};
  CHECK_OK(ad_mesh_create(w->mesh, &s->mesh));
  for (int v = 0; v < VALUES; v++) {
    ad_layout layout = ad_layout_all(s->mesh, AD_R);
    const char *text = values[v].shape.ndim > 1 ? w->many : w->one;
    if (values[v].shape.ndim && *text) CHECK_OK(ad_layout_parse(s->mesh, text, &layout));
    CHECK_OK(ad_array_create(comm, values[v].dtype, &values[v].shape, &layout, &s->arrays[v]));
    s->list[v] = (ad_checkpoint_value){values[v].name, &s->arrays[v]};
  }
  s->state = (ad_checkpoint_state){.size = sizeof(ad_checkpoint_state),
                                   .values = s->list,
                                   .value_count = VALUES,
                                   .numbers = s->numbers,
                                   .number_count = 1,
                                   .text = "a: recipe\n"};
}

static void close_side(side *s) {
  for (int v = 0; v < VALUES; v++) ad_array_destroy(s->comm, &s->arrays[v]);
  ad_mesh_destroy(s->mesh);
}

/* ---- folders and files ---- */

static const char *at(const char *name) {
  static char path[4][160];
  static int next;
  char *out = path[next++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", folder, name);
  return out;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-checkpoint-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static void empty_folder(void) {
  for (int step = 0; step < 10; step++) {
    char name[32];
    snprintf(name, sizeof name, "step-%d", step);
    assert_int_equal(ad_folder_remove(at(name)), AD_OK);
  }
}

static int remove_folder(void **state) {
  empty_folder();
  return rmdir(folder);
}

static int is_there(const char *name) { return !access(at(name), F_OK); }

/* ---- saving and loading on ranks ---- */

static int save_on_rank(ad_comm *comm, void *context) {
  side s;
  ad_checkpointer *c;
  open_side(comm, context, &s);
  CHECK_OK(ad_checkpointer_create(comm, s.mesh, folder, 2, &c));
  fill(&s, 5);
  CHECK_OK(ad_checkpointer_save(c, &s.state));
  spoil(&s);  // the save has copied the values, so changing them now must not matter
  CHECK_OK(ad_checkpointer_finish(c));
  CHECK(ad_checkpoint_newest(folder) == 5);
  ad_checkpointer_destroy(c);
  close_side(&s);
  return 0;
}

static int load_on_rank(ad_comm *comm, void *context) {
  side s;
  open_side(comm, context, &s);
  spoil(&s);
  CHECK_OK(ad_checkpoint_load(comm, s.mesh, folder, &s.state));
  CHECK(holds(&s, 5));
  close_side(&s);
  return 0;
}

static void every_world_reads_what_any_other_wrote(void **state) {
  for (int from = 0; from < WORLDS; from++) {
    run_ranks(worlds[from].ranks, save_on_rank, (void *)&worlds[from]);
    for (int to = 0; to < WORLDS; to++) run_ranks(worlds[to].ranks, load_on_rank, (void *)&worlds[to]);
  }
}

static void every_element_is_written_once(void **state) {
  const world *w = &worlds[2];
  int64_t numel[VALUES] = {0};
  run_ranks(w->ranks, save_on_rank, (void *)w);
  for (int rank = 0; rank < w->ranks; rank++) {
    char name[64];
    ad_safetensors *file;
    snprintf(name, sizeof name, "step-5/rank-%d.safetensors", rank);
    assert_int_equal(is_there(name), rank < 2);  // the second replica writes no file
    if (rank >= 2) continue;
    assert_int_equal(ad_safetensors_open(at(name), &file), AD_OK);
    for (int v = 0; v < VALUES; v++) {
      const ad_safetensor *tensor = ad_safetensors_find(file, values[v].name);
      if (!tensor) continue;
      assert_true(ad_shape_numel(&tensor->shape) > 0); /* a part without elements is not written */
      numel[v] += ad_shape_numel(&tensor->shape);
    }
    ad_safetensors_close(file);
  }
  for (int v = 0; v < VALUES; v++) assert_int_equal(numel[v], ad_shape_numel(&values[v].shape));
}

static int everywhere(ad_comm *comm, const ad_group *group, int32_t here) {
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = *group,
                          .in = &here,
                          .out = &here,
                          .count = 1,
                          .dtype = AD_I32,
                          .reduction = AD_MIN,
                          .site = AD_HERE};
  CHECK_OK(ad_comm_run(comm, &reduce));
  return here;
}

static int poll_on_rank(ad_comm *comm, void *context) {
  side s;
  ad_checkpointer *c;
  open_side(comm, context, &s);
  ad_group group = ad_mesh_group(s.mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_checkpointer_create(comm, s.mesh, folder, 2, &c));
  for (int64_t step = 1; step <= 4; step++) {
    int complete = 0;
    fill(&s, step);
    CHECK_OK(ad_checkpointer_save(c, &s.state));
    for (int polls = 0; polls < 1000 * RANK_HANGS && !complete; polls++) {
      usleep(1000);
      CHECK_OK(ad_checkpointer_poll(c));
      complete = everywhere(comm, &group, ad_checkpoint_newest(folder) == step);
    }
    CHECK(complete);
  }
  CHECK_OK(ad_checkpointer_finish(c));
  ad_checkpointer_destroy(c);
  close_side(&s);
  return 0;
}

static int count_unfinished(void) {
  glob_t found;
  char pattern[96];
  snprintf(pattern, sizeof pattern, "%s/*.tmp", folder);
  int count = glob(pattern, 0, NULL, &found) ? 0 : (int)found.gl_pathc;
  if (count) globfree(&found);
  return count;
}

static void polling_completes_them_and_the_last_ones_stay(void **state) {
  assert_int_equal(mkdir(at("step-3.tmp"), 0777), 0);  // acts as an interrupted write
  run_ranks(3, poll_on_rank, (void *)&worlds[3]);
  assert_false(is_there("step-1") || is_there("step-2") || is_there("step-3.tmp") || is_there("step-4.tmp"));
  assert_true(is_there("step-3") && is_there("step-4"));
}

/* An attacker could have made links with names that can be guessed: the target of such a link is neither written nor
 * removed. */
static void links_in_the_folder_are_not_followed(void **state) {
  static const char *const links[] = {"step-3.tmp", "step-4.tmp", "step-3.old.tmp"};
  char victim[96], kept[128];
  snprintf(victim, sizeof victim, "%s-victim", folder);
  snprintf(kept, sizeof kept, "%s/kept", victim);
  assert_int_equal(mkdir(victim, 0777), 0);
  fclose(fopen(kept, "w"));
  for (size_t i = 0; i < 3; i++) assert_int_equal(symlink(victim, at(links[i])), 0);
  run_ranks(3, poll_on_rank, (void *)&worlds[3]);
  assert_true(is_there("step-3") && is_there("step-4"));
  assert_int_equal(count_unfinished(), 0);
  assert_int_equal(unlink(kept), 0);   // the link's target was not removed
  assert_int_equal(rmdir(victim), 0);  // and nothing was written into it
}

static int saves_one_after_another(ad_comm *comm, void *context) {
  side s;
  ad_checkpointer *c;
  open_side(comm, context, &s);
  CHECK_OK(ad_checkpointer_create(comm, s.mesh, folder, 2, &c));
  for (int64_t step = 3; step <= 5; step++) {  // each save waits for the one before it
    fill(&s, step);
    CHECK_OK(ad_checkpointer_save(c, &s.state));
  }
  CHECK_OK(ad_checkpointer_finish(c));
  spoil(&s);
  CHECK_OK(ad_checkpoint_load(comm, s.mesh, folder, &s.state));
  CHECK(holds(&s, 5));
  CHECK_OK(ad_checkpointer_save(c, &s.state));  // replaces the checkpoint of the same step
  ad_checkpointer_destroy(c);                   // this save was not finished, so the checkpoint stays incomplete
  close_side(&s);
  return 0;
}

static void saves_wait_for_the_one_before(void **state) {
  run_ranks(4, saves_one_after_another, (void *)&worlds[4]);
  assert_true(is_there("step-5"));
  run_ranks(3, load_on_rank, (void *)&worlds[3]);
  assert_int_equal(ad_checkpoint_clean(folder), AD_OK);
}

/* ---- a full disk ---- */

static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
}

static int fill_the_disk(ad_comm *comm, void *context) {
  side s;
  ad_checkpointer *c;
  open_side(comm, context, &s);
  CHECK_OK(ad_checkpointer_create(comm, s.mesh, folder, 2, &c));
  fill(&s, 1);
  CHECK_OK(ad_checkpointer_save(c, &s.state));
  CHECK_OK(ad_checkpointer_finish(c));
  if (ad_comm_rank(comm) == 1) limit_files(200);
  fill(&s, 2);
  CHECK_OK(ad_checkpointer_save(c, &s.state));
  CHECK_STATUS(ad_checkpointer_finish(c), AD_IO);
  CHECK_SAYS("step 2");
  CHECK_SAYS("tmp/rank-1.safetensors");
  CHECK_LISTED();
  CHECK_OK(ad_checkpoint_load(comm, s.mesh, folder, &s.state));
  CHECK(holds(&s, 1));
  if (ad_comm_rank(comm) == 1) limit_files(RLIM_INFINITY);
  fill(&s, 3);  // from here on there is room again
  CHECK_OK(ad_checkpointer_save(c, &s.state));
  CHECK_OK(ad_checkpointer_finish(c));
  ad_checkpointer_destroy(c);
  close_side(&s);
  return 0;
}

static void a_full_disk_is_an_error_on_all_ranks_and_harms_nothing_earlier(void **state) {
  run_ranks(3, fill_the_disk, (void *)&worlds[3]);
  assert_true(is_there("step-1") && is_there("step-3"));
  assert_false(is_there("step-2") || count_unfinished());
}

/* ---- damaged checkpoints, in a world of one rank ---- */

typedef struct alone {
  ad_comm *comm;
  side s;
} alone;

static void collect_log(void *context, ad_log_level level, const char *message) {
  if (level == AD_LOG_WARNING) snprintf(context, 1024, "%s", message);
}
static char warning[1024];

// Opens *a, whose address must stay the same (its side points into itself), and saves two checkpoints.
static void save_two(alone *a) {
  ad_checkpointer *c;
  assert_int_equal(ad_comm_open_alone(&a->comm), AD_OK);
  open_side(a->comm, &worlds[0], &a->s);
  assert_int_equal(ad_checkpointer_create(a->comm, a->s.mesh, folder, 2, &c), AD_OK);
  for (int64_t step = 1; step <= 2; step++) {
    fill(&a->s, step);
    assert_int_equal(ad_checkpointer_save(c, &a->s.state), AD_OK);
  }
  assert_int_equal(ad_checkpointer_finish(c), AD_OK);
  ad_checkpointer_destroy(c);
  ad_set_log(collect_log, warning);
}

static void close_alone(alone *a) {
  ad_set_log(NULL, NULL);
  close_side(&a->s);
  ad_comm_close(a->comm);
}

/* A warning has the facts of step 2; its sentence is in the list `name`, or differs from byte to byte (NULL). */
static void loads_the_one_before(alone *a, const char *name, const char *const *facts) {
  spoil(&a->s);
  warning[0] = 0;
  ad_status status = ad_checkpoint_load(a->comm, a->s.mesh, folder, &a->s.state);
  if (status) fail_msg("%s", ad_last_error());
  assert_true(holds(&a->s, 1));
  assert_facts(warning, "step 2");
  says_or_fail(name ? says_wrong(warning, facts, __FILE__, name) : says_missing(warning, facts), __FILE__, __LINE__);
}

static void put(const char *name, const char *bytes, size_t size) {
  FILE *file = fopen(at(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  fclose(file);
}

static void damage_at_every_byte(const char *name) {
  alone a;
  save_two(&a);
  char *bytes;
  int64_t size;
  assert_int_equal(ad_file_read(at(name), 1 << 20, &bytes, &size), AD_OK);
  for (int64_t cut = 0; cut < size; cut++) {
    put(name, bytes, (size_t)cut);
    loads_the_one_before(&a, NULL, SAYS_FACTS(name));
  }
  for (int64_t i = 0; i < size; i++) {
    bytes[i] = (char)(bytes[i] ^ 1 << i % 8);
    put(name, bytes, (size_t)size);
    loads_the_one_before(&a, NULL, SAYS_FACTS(name));
    bytes[i] = (char)(bytes[i] ^ 1 << i % 8);
  }
  put(name, bytes, (size_t)size);
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_OK);
  assert_true(holds(&a.s, 2));
  assert_int_equal(unlink(at(name)), 0);
  loads_the_one_before(&a, "a file that is not there", SAYS_FACTS(name));
  ad_release(bytes);
  close_alone(&a);
}

static void a_damaged_shard_is_seen_at_any_byte(void **state) { damage_at_every_byte("step-2/rank-0.safetensors"); }

static const char *damaged; /* the damaged file */

static int refuse_on_rank(ad_comm *comm, void *context) {
  side s;
  open_side(comm, context, &s);
  spoil(&s);
  CHECK_STATUS(ad_checkpoint_load(comm, s.mesh, folder, &s.state), AD_IO);
  CHECK_SAYS(damaged);
  close_side(&s);
  return 0;
}

static void flip_last_byte(const char *name) {
  char *bytes;
  int64_t size;
  assert_int_equal(ad_file_read(at(name), 1 << 20, &bytes, &size), AD_OK);
  bytes[size - 1] ^= 1;
  put(name, bytes, (size_t)size);
  ad_release(bytes);
}

static void a_damaged_shard_of_any_rank_is_seen_by_any_world(void **state) {
  static const world *const readers[] = {&worlds[0], &worlds[3], &worlds[4], &worlds[5]};
  const world *four = &worlds[4];
  run_ranks(four->ranks, save_on_rank, (void *)four);
  for (int64_t file = 0; file < four->ranks; file++) {
    char name[64];
    snprintf(name, sizeof name, "step-5/rank-%d.safetensors", (int)file);
    damaged = strchr(name, '/') + 1;
    flip_last_byte(name);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
      run_ranks(readers[i]->ranks, refuse_on_rank, (void *)readers[i]);
    flip_last_byte(name);
  }
  run_ranks(1, load_on_rank, (void *)&worlds[0]);
  empty_folder();
}

static void an_index_that_says_another_step_is_passed_over(void **state) {
  alone a;
  save_two(&a);
  forge(at("step-2/index.json"), "\"step\":2", "\"step\":-1");
  loads_the_one_before(&a, "a negative step", SAYS_FACTS("index.json", "step -1"));
  forge(at("step-2/index.json"), "\"step\":-1", "\"step\":\"2\"");
  loads_the_one_before(&a, "a step that is a text", SAYS_FACTS("index.json", "\"2\""));
  close_alone(&a);
}

static void an_index_that_says_another_dtype_is_passed_over(void **state) {
  alone a;
  save_two(&a);
  forge(at("step-2/index.json"), "\"dtype\":\"bf16\"", "\"dtype\":\"f64\"");
  loads_the_one_before(&a, "another dtype", SAYS_FACTS("index.json", "f64", "bf16"));
  forge(at("step-1/index.json"), "\"dtype\":\"bf16\"", "\"dtype\":\"f64\"");
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_IO);
  assert_says("step 2", "index.json", "f64", "bf16");
  // no earlier checkpoint exists
  assert_text_says(warning, "step 1", "index.json");
  close_alone(&a);
}

static void an_index_that_says_other_ranks_than_its_mesh_has_is_passed_over(void **state) {
  static const char *const ranks[] = {"1", "0", "-1", "99999999999", "\"1\"", "null"};
  char from[32], to[32];
  alone a;
  save_two(&a);
  for (size_t i = 1; i < sizeof ranks / sizeof *ranks; i++) {
    snprintf(from, sizeof from, "\"ranks\":%s,", ranks[i - 1]);
    snprintf(to, sizeof to, "\"ranks\":%s,", ranks[i]);
    forge(at("step-2/index.json"), from, to);
    loads_the_one_before(&a, ranks[i], SAYS_FACTS("index.json"));
  }
  forge(at("step-2/index.json"), "\"ranks\":null,", "\"ranks\":1,");
  forge(at("step-2/index.json"), "\"mesh\":\"dp_shard=1\"", "\"mesh\":\"dp_shard=0\"");
  loads_the_one_before(&a, "a mesh of no ranks", SAYS_FACTS("index.json", "dp_shard=0"));
  close_alone(&a);
}

/* Renames to a name with this ending fail; NULL: no rename fails. */
static const char *refused_end;

int rename(const char *from, const char *to) {
  size_t length = strlen(to), end = refused_end ? strlen(refused_end) : 0;
  if (end && length > end && !strcmp(to + length - end, refused_end)) return errno = EACCES, -1;
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static void others_in_the_way_are_set_aside(void **state) {
  alone a;
  ad_checkpointer *c;
  char pattern[96];
  glob_t found;
  save_two(&a);
  assert_int_equal(ad_checkpointer_create(a.comm, a.s.mesh, folder, 2, &c), AD_OK);
  fill(&a.s, 3);
  assert_int_equal(mkdir(at("step-3"), 0777), 0);
  assert_int_equal(mkdir(at("step-3/full"), 0777), 0);
  assert_int_equal(ad_checkpointer_save(c, &a.s.state), AD_OK);
  assert_int_equal(ad_checkpointer_finish(c), AD_OK);
  snprintf(pattern, sizeof pattern, "%s/step-3.*.others/full", folder);
  assert_int_equal(glob(pattern, 0, NULL, &found), 0);
  assert_int_equal(found.gl_pathc, 1);
  assert_int_equal(rmdir(found.gl_pathv[0]), 0);
  *strrchr(found.gl_pathv[0], '/') = 0;
  assert_int_equal(rmdir(found.gl_pathv[0]), 0);
  globfree(&found);
  assert_int_equal(ad_folder_remove(at("step-3")), AD_OK);
  ad_checkpointer_destroy(c);
  close_alone(&a);
}

static void a_failed_checkpoint_takes_its_own_pieces_away_and_says_so(void **state) {
  alone a;
  ad_checkpointer *c;
  save_two(&a);
  assert_int_equal(ad_checkpointer_create(a.comm, a.s.mesh, folder, 2, &c), AD_OK);
  fill(&a.s, 3);
  assert_int_equal(mkdir(at("step-3"), 0777), 0);  // a foreign folder in the way
  assert_int_equal(mkdir(at("step-3.old.tmp"), 0777), 0);
  assert_int_equal(mkdir(at("step-3.old.tmp/full"), 0777), 0);
  refused_end = ".others";
  assert_int_equal(ad_checkpointer_save(c, &a.s.state), AD_OK);
  assert_int_equal(ad_checkpointer_finish(c), AD_IO);
  refused_end = NULL;
  assert_says("step-3.old.tmp");
  assert_listed();
  assert_int_equal(count_unfinished(), 1);
  assert_int_equal(rmdir(at("step-3.old.tmp/full")) | rmdir(at("step-3.old.tmp")) | rmdir(at("step-3")), 0);
  ad_checkpointer_destroy(c);
  close_alone(&a);
}

static void a_damaged_index_is_seen_at_any_byte(void **state) { damage_at_every_byte("step-2/index.json"); }

static void where_none_is_usable_each_is_named_with_its_reason(void **state) {
  alone a;
  save_two(&a);
  assert_int_equal(unlink(at("step-2/index.json")), 0);
  assert_int_equal(truncate(at("step-1/rank-0.safetensors"), 9), 0);
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_IO);
  assert_says("step 2");
  assert_says("step-2/index.json");
  assert_says("step-1/rank-0.safetensors", "9");
  empty_folder();
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_IO);
  assert_listed();
  close_alone(&a);
}

static void another_models_checkpoint_is_refused_by_name(void **state) {
  alone a;
  save_two(&a);
  a.s.list[0].name = "matrix2";
  a.s.arrays[1].shape.dim[0] = 1;
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_INVALID);
  assert_says("matrix2", "[1, 4, 2]");
  a.s.list[0].name = values[0].name;
  a.s.arrays[1].shape = values[1].shape;
  a.s.numbers[0].name = "other";
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_INVALID);
  assert_says("other");
  close_alone(&a);
}

static void dtypes_are_converted(void **state) {
  alone a;
  save_two(&a);
  double wide[NUMEL_MAX] = {0};
  float narrow[NUMEL_MAX] = {0};
  a.s.arrays[0].dtype = AD_F64;
  void *kept = a.s.arrays[0].data;
  a.s.arrays[0].data = wide;
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_OK);
  full_of(0, 2, narrow);
  for (int i = 0; i < 35; i++) assert_true(wide[i] == narrow[i]);
  a.s.arrays[0].data = kept;
  a.s.arrays[0].dtype = AD_I32;
  assert_int_equal(ad_checkpoint_load(a.comm, a.s.mesh, folder, &a.s.state), AD_INVALID);
  close_alone(&a);
}

static void a_partial_is_no_value_to_save(void **state) {
  alone a;
  save_two(&a);
  ad_checkpointer *c;
  assert_int_equal(ad_checkpointer_create(a.comm, a.s.mesh, folder, 2, &c), AD_OK);
  ad_layout_set(&a.s.arrays[0].layout, AD_AXES(AD_DP_SHARD), AD_P);
  assert_int_equal(ad_checkpointer_save(c, &a.s.state), AD_TYPE);
  assert_says("dp_shard");
  assert_int_equal(ad_checkpointer_finish(c), AD_OK);
  ad_checkpointer_destroy(c);
  assert_int_equal(ad_checkpointer_create(a.comm, a.s.mesh, folder, 0, &c), AD_INVALID);
  close_alone(&a);
}

static ad_status save_and_load(alone *a) {
  ad_checkpointer *c;
  fill(&a->s, 4);
  AD_TRY(ad_checkpointer_create(a->comm, a->s.mesh, folder, 2, &c));
  ad_status status = ad_checkpointer_save(c, &a->s.state);
  if (!status) status = ad_checkpointer_finish(c);
  ad_checkpointer_destroy(c);
  if (!status) status = ad_checkpoint_load(a->comm, a->s.mesh, folder, &a->s.state);
  return status;
}

static void without_memory_nothing_is_lost(void **state) {
  alone a;
  save_two(&a);
  ad_status status = AD_MEMORY;
  long n = 0;
  do {
    ad_memory_fail_at(++n);
    status = save_and_load(&a);
    if (status) assert_int_equal(status, AD_MEMORY);
    if (!status) assert_int_equal(a.s.state.step, ad_checkpoint_newest(folder)); /* an old one may be left there */
    assert_true(n < 500);
    assert_true(ad_checkpoint_newest(folder) >= 2);
  } while (ad_memory_fail_at(0) >= n);
  assert_int_equal(status, AD_OK);
  assert_true(n > 40);
  close_alone(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_world_reads_what_any_other_wrote, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(every_element_is_written_once, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(polling_completes_them_and_the_last_ones_stay, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(links_in_the_folder_are_not_followed, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(saves_wait_for_the_one_before, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_full_disk_is_an_error_on_all_ranks_and_harms_nothing_earlier, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(a_damaged_shard_is_seen_at_any_byte, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_damaged_shard_of_any_rank_is_seen_by_any_world, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(an_index_that_says_another_step_is_passed_over, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(an_index_that_says_another_dtype_is_passed_over, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(an_index_that_says_other_ranks_than_its_mesh_has_is_passed_over, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(others_in_the_way_are_set_aside, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_failed_checkpoint_takes_its_own_pieces_away_and_says_so, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(a_damaged_index_is_seen_at_any_byte, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(where_none_is_usable_each_is_named_with_its_reason, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(another_models_checkpoint_is_refused_by_name, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(dtypes_are_converted, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_partial_is_no_value_to_save, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(without_memory_nothing_is_lost, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
