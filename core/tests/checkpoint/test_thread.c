/* Tests a checkpoint whose thread cannot be started: the next poll reports it, and a later save succeeds. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "array/array.h"
#include "addend/checkpoint.h"
#include "base/error.h"
#include "checkpoint/checkpoint_folder.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if ((call) != AD_OK) fail_msg("%s", ad_last_error()); \
  } while (0)

/* pthread_create fails at this call; 0: never. */
static int fails_at;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context) {
  if (fails_at && !--fails_at) return EAGAIN;
  return __real_pthread_create(thread, attributes, start, context);
}

/* Call 1 writes the pieces, call 2 the index. */
static void a_thread_that_cannot_be_started_is_reported(void **state) {
  for (int fails = 1; fails <= 2; fails++) {
    char folder[] = "/tmp/addend-thread-XXXXXX", command[64];
    float data[3] = {1, 2, 3};
    ad_comm *comm;
    ad_mesh *mesh;
    ad_checkpointer *checkpointer;
    assert_non_null(mkdtemp(folder));
    must(ad_comm_open_alone(&comm));
    must(ad_mesh_create("dp_shard=1", &mesh));
    ad_layout layout = ad_layout_all(mesh, AD_R);
    ad_array array = ad_array_describe(comm, AD_F32, &(ad_shape){1, {3}}, &layout);
    array.data = data;
    ad_checkpoint_value value = {"value.a", &array};
    ad_checkpoint_state saved = {.size = sizeof saved, .step = 4, .values = &value, .value_count = 1};
    must(ad_checkpointer_create(comm, mesh, folder, 2, &checkpointer));
    fails_at = fails;
    must(ad_checkpointer_save(checkpointer, &saved));
    ad_status status = AD_OK;
    if (fails == 1) status = ad_checkpointer_poll(checkpointer);  // immediately: there is nothing to wait for
    if (fails == 2) status = ad_checkpointer_finish(checkpointer);
    assert_int_equal(status, AD_SYSTEM);
    assert_says("4", folder);
    assert_int_equal(ad_checkpoint_newest(folder), -1);
    must(ad_checkpointer_save(checkpointer, &saved));
    must(ad_checkpointer_finish(checkpointer));
    assert_int_equal(ad_checkpoint_newest(folder), 4);
    ad_checkpointer_destroy(checkpointer);
    ad_mesh_destroy(mesh);
    ad_comm_close(comm);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_thread_that_cannot_be_started_is_reported)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
