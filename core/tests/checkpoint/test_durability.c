/* Tests that a complete checkpoint is on disk whenever the machine stops: what is synced, and in which order files are
 * renamed and removed. The test program defines the relevant system calls itself: it records each call that the library
 * makes, and then passes it on to the system. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "addend/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_index.h"
#include "files/file.h"
#include "ranks.h"
#include "says.h"

/* ---- the system calls, in the order in which they were made ---- */

enum { CALLS_MAX = 256, CALL_SIZE = 400 };
static char calls[CALLS_MAX][CALL_SIZE]; /* such as "fsync step-1.tmp/index.json", "rename step-1.tmp step-1" */
static int call_count;
static char folder[64];

static const char *failing; /* the next call with this text fails; NULL: none fails */

static int fails(const char *call) {
  if (!failing || strcmp(call, failing) != 0) return 0;
  failing = NULL;
  errno = EIO;
  return 1;
}

/* No lock is needed: one thread writes a checkpoint, and the test waits for it. */
static char *next_call(void) { return calls[call_count < CALLS_MAX ? call_count++ : CALLS_MAX - 1]; }

/* The path below the folder, "." for the folder itself, without the random part of an unfinished file's name. */
static const char *inside(const char *path) {
  static _Thread_local char plain[2][160];
  static _Thread_local int next;
  size_t length = strlen(folder);
  if (!length || strncmp(path, folder, length) != 0) return path;
  if (path[length] != '/') return ".";
  char *out = plain[next++ % 2], *token;
  snprintf(out, sizeof plain[0], "%s", path + length + 1);
  for (token = strchr(out, '.'); token && strspn(token + 1, "0123456789abcdef") != 16;) token = strchr(token + 1, '.');
  if (token) memmove(token, token + 17, strlen(token + 17) + 1);
  return out;
}

static void path_of(int file, char *out, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, out, size - 1);
  out[length > 0 ? length : 0] = 0;
}

int fsync(int file) {
  char path[160];
  path_of(file, path, sizeof path);
  char *call = next_call();
  snprintf(call, CALL_SIZE, "fsync %s", inside(path));
  return fails(call) ? -1 : (int)syscall(SYS_fsync, file);
}

int rename(const char *from, const char *to) {
  char *call = next_call();
  snprintf(call, CALL_SIZE, "rename %s %s", inside(from), inside(to));
  return fails(call) ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int unlinkat(int parent, const char *name, int flags) {
  char path[160] = "";
  if (parent != AT_FDCWD) path_of(parent, path, sizeof path);
  snprintf(next_call(), CALL_SIZE, "unlink %s%s%s", inside(path), *path ? "/" : "", inside(name));
  return (int)syscall(SYS_unlinkat, parent, name, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

/* The number of the first call from `start` on that begins with these words; CALLS_MAX if there is none. */
static int find_from(int start, const char *words) {
  for (int i = start; i < call_count; i++)
    if (!strncmp(calls[i], words, strlen(words))) return i;
  return CALLS_MAX;
}

static void print_calls(void) {
  for (int i = 0; i < call_count; i++) print_error("  %s\n", calls[i]);
}

/* Checks that these calls were made in this order. */
static void made_in_order(const char *const *words, size_t count) {
  int at = -1;
  for (size_t i = 0; i < count; i++) {
    at = find_from(at + 1, words[i]);
    if (at < CALLS_MAX) continue;
    print_calls();
    fail_msg("\"%s\" was not called, or not after \"%s\"", words[i], i ? words[i - 1] : "the beginning");
  }
}

/* Checks that no call beginning with `words` came before the first call beginning with `first`. */
static void not_before(const char *words, const char *first) {
  if (find_from(0, words) > find_from(0, first)) return;
  print_calls();
  fail_msg("\"%s\" came before \"%s\"", words, first);
}

/* ---- saving in a world of one rank ---- */

enum { ROWS = 4 };

typedef struct alone {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_checkpointer *checkpointer;
  float numbers[2 * ROWS];
  ad_array array;
  ad_checkpoint_value value;
  ad_checkpoint_state state;
} alone;

static void open_alone(alone *a, int64_t keep) {
  *a = (alone){0};
  snprintf(folder, sizeof folder, "/tmp/addend-durability-XXXXXX");
  assert_non_null(mkdtemp(folder));
  assert_int_equal(ad_comm_open_alone(&a->comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_shard=1", &a->mesh), AD_OK);
  ad_layout layout = ad_layout_all(a->mesh, AD_R);
  a->array = ad_array_describe(a->comm, AD_F32, &(ad_shape){2, {ROWS, 2}}, &layout);
  a->array.data = a->numbers;
  a->value = (ad_checkpoint_value){"matrix", &a->array};
  a->state = (ad_checkpoint_state){.size = sizeof(ad_checkpoint_state), .values = &a->value, .value_count = 1};
  assert_int_equal(ad_checkpointer_create(a->comm, a->mesh, folder, keep, &a->checkpointer), AD_OK);
}

static void save(alone *a, int64_t step) {
  for (int i = 0; i < 2 * ROWS; i++) a->numbers[i] = (float)(step + i);
  a->state.step = step;
  call_count = 0;
  assert_int_equal(ad_checkpointer_save(a->checkpointer, &a->state), AD_OK);
  assert_int_equal(ad_checkpointer_finish(a->checkpointer), AD_OK);
}

static void close_alone(alone *a) {
  ad_checkpointer_destroy(a->checkpointer);
  ad_mesh_destroy(a->mesh);
  ad_comm_close(a->comm);
  for (int step = 0; step < 4; step++) {
    char path[160];
    snprintf(path, sizeof path, "%s/step-%d", folder, step);
    assert_int_equal(ad_folder_remove(path), AD_OK);
  }
  assert_int_equal(rmdir(folder), 0);
}

/* ---- the order of calls ---- */

static void a_checkpoint_gets_its_name_when_all_of_it_is_on_disk(void **state) {
  alone a;
  open_alone(&a, 2);
  save(&a, 1);
  static const char *const shard[] = {"fsync step-1.tmp/rank-0.safetensors", "rename step-1.tmp step-1"};
  static const char *const index[] = {"fsync step-1.tmp/index.json", "rename step-1.tmp step-1"};
  // The files' names are synced after the last file, and the checkpoint's name after its rename.
  static const char *const names[] = {"fsync step-1.tmp/rank-0.safetensors", "fsync step-1.tmp/index.json",
                                      "fsync step-1.tmp", "rename step-1.tmp step-1", "fsync ."};
  made_in_order(shard, 2);
  made_in_order(index, 2);
  made_in_order(names, 5);
  close_alone(&a);
}

static void an_older_one_goes_when_the_new_one_has_its_name_on_disk(void **state) {
  alone a;
  open_alone(&a, 1);
  save(&a, 1);
  save(&a, 2);
  static const char *const order[] = {"rename step-2.tmp step-2", "fsync .", "rename step-1 ", "unlink "};
  made_in_order(order, 4);
  not_before("rename step-1", "fsync .");
  not_before("unlink", "fsync .");
  close_alone(&a);
}

/* A checkpoint that is removed loses its name first, so that no half-removed one looks complete. */
static void no_file_of_a_complete_one_is_removed_while_it_has_its_name(void **state) {
  alone a;
  open_alone(&a, 1);
  save(&a, 1);
  save(&a, 2);
  for (int i = 0; i < call_count; i++) {
    if (!strncmp(calls[i], "unlink step-1/", 14)) fail_msg("%s", calls[i]);
  }
  close_alone(&a);
}

/* An old checkpoint that cannot be renamed remains complete, and the caller gets the error. */
static void an_older_one_that_cannot_be_removed_is_reported(void **state) {
  alone a;
  char path[160];
  open_alone(&a, 2);
  save(&a, 1);
  save(&a, 2);
  failing = "rename step-1 step-1.old.tmp";
  assert_int_equal(ad_checkpoint_remove_older(folder, 2, 1), AD_IO);
  assert_null(failing);
  assert_says("/step-1");
  snprintf(path, sizeof path, "%s/step-1/index.json", folder);
  assert_int_equal(access(path, R_OK), 0);
  assert_int_equal(ad_checkpoint_remove_older(folder, 2, 1), AD_OK);
  assert_int_not_equal(access(path, R_OK), 0);
  close_alone(&a);
}

static void one_of_the_same_step_is_replaced_before_it_is_removed(void **state) {
  alone a;
  open_alone(&a, 1);
  save(&a, 1);
  save(&a, 1);
  static const char *const order[] = {"fsync step-1.tmp", "rename step-1 ", "rename step-1.tmp step-1", "fsync .",
                                      "unlink "};
  made_in_order(order, 5);
  not_before("unlink", "rename step-1.tmp step-1");
  close_alone(&a);
}

/* The new checkpoint cannot be renamed, or its name cannot be synced: the old one stays. */
static void one_of_the_same_step_stays_where_the_new_one_fails(void **state) {
  static const char *const calls_that_fail[] = {"rename step-1.tmp step-1", "fsync ."};
  alone a;
  open_alone(&a, 1);
  save(&a, 1);
  for (size_t i = 0; i < 2; i++) {
    a.numbers[0] = -1;
    call_count = 0;
    failing = calls_that_fail[i];
    assert_int_equal(ad_checkpointer_save(a.checkpointer, &a.state), AD_OK);
    assert_int_equal(ad_checkpointer_finish(a.checkpointer), AD_IO);
    assert_null(failing);
    assert_listed();
    assert_int_equal(ad_checkpoint_load(a.comm, a.mesh, folder, &a.state), AD_OK);
    assert_true(a.numbers[0] == 1);
  }
  close_alone(&a);
}

/* ---- a value of which the files hold only a part ---- */

static int save_halves(ad_comm *comm, void *context) {
  (void)context;
  ad_mesh *mesh;
  ad_checkpointer *checkpointer;
  ad_array array;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  CHECK_OK(ad_array_create(comm, AD_F32, &(ad_shape){2, {ROWS, 2}}, &layout, &array));
  ad_checkpoint_value value = {"matrix", &array};
  ad_checkpoint_state state = {.size = sizeof state, .step = 1, .values = &value, .value_count = 1};
  CHECK_OK(ad_checkpointer_create(comm, mesh, folder, 1, &checkpointer));
  CHECK_OK(ad_checkpointer_save(checkpointer, &state));
  CHECK_OK(ad_checkpointer_finish(checkpointer));
  ad_checkpointer_destroy(checkpointer);
  ad_array_destroy(comm, &array);
  ad_mesh_destroy(mesh);
  return 0;
}

/* Rewrites the index under a valid checksum: the second piece is left out, or put in place of the first (doubles). */
static void lose_a_piece(int doubles) {
  char path[160];
  json_t *index;
  snprintf(path, sizeof path, "%s/step-1/index.json", folder);
  assert_int_equal(ad_index_read(path, &index), AD_OK);
  json_t *pieces = json_object_get(json_object_get(json_object_get(index, "values"), "matrix"), "pieces");
  assert_int_equal(json_array_size(pieces), 2);
  if (doubles)
    assert_int_equal(json_array_set(pieces, 0, json_array_get(pieces, 1)), 0);
  else
    assert_int_equal(json_array_remove(pieces, 0), 0);
  assert_int_equal(ad_index_write(index, path), AD_OK);
  json_decref(index);
}

static void a_value_of_which_a_part_is_missing_does_not_load(void **state) {
  alone a;
  open_alone(&a, 1);
  run_ranks(2, save_halves, NULL);
  if (ad_checkpoint_load(a.comm, a.mesh, folder, &a.state)) fail_msg("%s", ad_last_error());
  lose_a_piece(0);
  assert_int_equal(ad_checkpoint_load(a.comm, a.mesh, folder, &a.state), AD_IO);
  assert_says("4", "8", "rank 0");
  close_alone(&a);
}

/* The files have the right number of elements, but one piece twice. */
static void a_value_of_which_a_part_is_there_twice_does_not_load(void **state) {
  alone a;
  open_alone(&a, 1);
  run_ranks(2, save_halves, NULL);
  lose_a_piece(1);
  assert_int_equal(ad_checkpoint_load(a.comm, a.mesh, folder, &a.state), AD_IO);
  assert_says("rank 0");
  close_alone(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_checkpoint_gets_its_name_when_all_of_it_is_on_disk),
      cmocka_unit_test(an_older_one_goes_when_the_new_one_has_its_name_on_disk),
      cmocka_unit_test(no_file_of_a_complete_one_is_removed_while_it_has_its_name),
      cmocka_unit_test(an_older_one_that_cannot_be_removed_is_reported),
      cmocka_unit_test(one_of_the_same_step_is_replaced_before_it_is_removed),
      cmocka_unit_test(one_of_the_same_step_stays_where_the_new_one_fails),
      cmocka_unit_test(a_value_of_which_a_part_is_missing_does_not_load),
      cmocka_unit_test(a_value_of_which_a_part_is_there_twice_does_not_load),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
