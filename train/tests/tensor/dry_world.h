/* A rank of a world of six on backend dry, and calls on its tape that are refused. */
#ifndef TESTS_TENSOR_DRY_WORLD_H
#define TESTS_TENSOR_DRY_WORLD_H
#include "says.h"
#include "tensor/tape.h"
#include "world.h"

#define SHAPE(n, ...) ((ad_shape){(n), {__VA_ARGS__}})

typedef struct dry_world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *tape;
  ad_array arrays[24];
  int count;
} dry_world;

static inline int open_dry(void **state) {
  static dry_world d;
  d = (dry_world){0};
  must(ad_comm_open_dry(1, 6, &d.comm));
  must(ad_mesh_create("dp_shard=3 tp=2", &d.mesh));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  *state = &d;
  return 0;
}

static inline int close_dry(void **state) {
  dry_world *d = *state;
  ad_tape_destroy(d->tape);
  ad_mesh_destroy(d->mesh);
  ad_comm_close(d->comm);
  return 0;
}

static inline const ad_array *array_of(dry_world *d, ad_dtype dtype, const char *layout_text, ad_shape shape) {
  ad_layout layout;
  must(ad_layout_parse(d->mesh, layout_text, &layout));
  d->arrays[d->count] = ad_array_describe(d->comm, dtype, &shape, &layout);
  return &d->arrays[d->count++];
}

static inline ad_tensor *leaf(dry_world *d, const char *layout_text, ad_shape shape) {
  return ad_input(d->tape, array_of(d, AD_F32, layout_text, shape));
}

static inline ad_tensor *indices(dry_world *d, const char *layout_text, ad_shape shape) {
  return ad_constant(d->tape, array_of(d, AD_I32, layout_text, shape));
}

/* The call is refused with these facts, and the place in the test; its sentence is in the list of the function. */
#define refused(d, out, status, ...)                                                                                  \
  says_or_fail(                                                                                                       \
      refusal_missing((d), (out), (status), SAYS_FACTS(strrchr(__FILE__, '/') + 1, __VA_ARGS__), __FILE__, __func__), \
      __FILE__, __LINE__)

/* What is missing from the refusal, as says_wrong. */
static inline const char *refusal_missing(dry_world *d, const ad_tensor *out, ad_status status,
                                          const char *const *facts, const char *file, const char *test) {
  assert_null(ad_tensor_array(out));
  assert_int_equal(ad_tape_status(d->tape), status);
  const char *wrong = says_wrong(ad_last_error(), facts, file, test);
  ad_tape_reset(d->tape);
  d->count = 0;
  return wrong;
}

#endif
