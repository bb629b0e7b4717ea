/* Tests layers that run again in backward (ad_recompute) on one tape: gradients have the bits that they have without,
 * dropout draws the same numbers, what is chosen or allocated by forward is kept, backward may start several times, and
 * memory is given back. */
#include <stdio.h>
#include "world.h"
#include "tensor/known_bugs.h"
#include "tensor/tape.h"

enum { LAYERS = 4, ROWS = 12, WIDTH = 16 };

typedef struct net {
  world w;
  ad_array x, weight[LAYERS], c;
} net;

static net open_net(void) {
  net n = {.w = world_open()};
  n.x = random_array(&n.w, AD_F64, (ad_shape){3, {2, ROWS / 2, WIDTH}}, 1, 0);
  for (uint64_t i = 0; i < LAYERS; i++)
    n.weight[i] = random_array(&n.w, AD_F64, (ad_shape){2, {WIDTH, WIDTH}}, 2 + i, 0);
  return n;
}

static void close_net(net *n) {
  free(n->x.data);
  for (int i = 0; i < LAYERS; i++) free(n->weight[i].data);
  world_close(&n->w);
}

static ad_tape *tape_with(const net *n, const char *const *layers, size_t count) {
  ad_tape *tape;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64, .recompute = layers, .recompute_count = count};
  must(ad_tape_create(n->w.comm, n->w.mesh, &options, &tape));
  return tape;
}

static ad_tensor *layer(ad_tape *t, ad_tensor *x, ad_tensor *w, const char *name) {
  ad_tensor *h = ad_rms_norm_unweighted(t, x, 1e-5);
  h = ad_dropout(t, ad_sigmoid(t, ad_linear(t, h, w)), 0.3, 7, name, 3, 0);
  return ad_add(t, x, ad_multiply(t, h, h));
}

typedef struct outcome {
  double loss, x[ROWS * WIDTH], weight[LAYERS][WIDTH * WIDTH];
  size_t bytes;
  int runs; /* how many operations ran again, and in how many walks */
} outcome;

static void count_runs(void *context, void *passing) {
  *(int *)context += ((const ad_rerun_passing *)passing)->out->runs_again;
}

/* One forward and `starts` runs of backward. */
static outcome run(net *n, const char *const *layers, size_t count, int starts) {
  outcome out = {0};
  char name[16];
  ad_tape *t = tape_with(n, layers, count);
  ad_tensor *w[LAYERS], *first = ad_input(t, &n->x), *x = first;
  for (int i = 0; i < LAYERS; i++) {
    const ad_tensor *enters = x;
    snprintf(name, sizeof name, "layer.%d", i);
    w[i] = ad_input(t, &n->weight[i]);
    x = layer(t, x, w[i], "drop");
    ad_recompute(enters, x, name);
  }
  ad_tensor *loss = project(&n->w, t, x, 40, &n->c);
  out.loss = ad_tensor_scalar(loss);
  for (int i = 0; i < starts; i++)
    must(ad_backward_from(t, &loss, NULL, 1, i + 1 < starts ? AD_MORE_STARTS : AD_LAST_START));
  memcpy(out.x, ad_grad(first)->data, ad_array_bytes(&n->x));
  for (int i = 0; i < LAYERS; i++) memcpy(out.weight[i], ad_grad(w[i])->data, ad_array_bytes(&n->weight[i]));
  out.bytes = ad_tape_peak_bytes(t);
  ad_tape_destroy(t);
  free(n->c.data);
  return out;
}

static outcome counted(net *n, const char *const *layers, size_t count, int starts) {
  int runs = 0;
  ad_injection_set(AD_INJECT_RERUN, (ad_injection){count_runs, &runs});
  outcome out = run(n, layers, count, starts);
  ad_injections_clear();
  out.runs = runs;
  return out;
}

static int same_bits(const outcome *a, const outcome *b) {
  return a->loss == b->loss && !memcmp(a->x, b->x, sizeof a->x) && !memcmp(a->weight, b->weight, sizeof a->weight);
}

static void gradients_have_the_same_bits(void **state) {
  static const char *const every[] = {"*"}, *const some[] = {"layer.[02]"};
  net n = open_net();
  for (int starts = 1; starts < 4; starts++) {
    outcome none = counted(&n, NULL, 0, starts), all = counted(&n, every, 1, starts),
            two = counted(&n, some, 1, starts);
    assert_true(same_bits(&none, &all) && same_bits(&none, &two));
    assert_int_equal(none.runs, 0);
    // norm, product, sigmoid and dropout run again; nobody reads the product with itself, and the sum is kept
    assert_int_equal(all.runs, starts * LAYERS * 4);
    assert_int_equal(two.runs, starts * 2 * 4);
    assert_true(all.bytes < two.bytes && two.bytes < none.bytes);
  }
  close_net(&n);
}

static void numbers_drawn_again_would_show(void **state) {
  static const char *const every[] = {"*"};
  size_t count;
  const ad_known_bug *bugs = ad_tensor_known_bugs(&count);
  net n = open_net();
  outcome right = run(&n, every, 1, 1);
  ad_known_bug_scene scene = {0};
  for (size_t i = 0; i < count; i++)
    if (!strcmp(bugs[i].name, "recomputed-dropout-drawn-again")) ad_known_bug_inject(&bugs[i], &scene);
  outcome wrong = run(&n, every, 1, 1);
  ad_injections_clear();
  assert_true(scene.fired && !same_bits(&right, &wrong));
  close_net(&n);
}

/* Gradients of the weights of layers that no input reaches, so that all of them run in the second of two passes. What
 * enters a layer is read by no backward, only by what runs again. */
static size_t weights_of(net *n, int again, int two_passes, double gradient[LAYERS][WIDTH * WIDTH]) {
  static const char *const every[] = {"*"};
  const ad_array *list[LAYERS];
  for (int i = 0; i < LAYERS; i++) list[i] = &n->weight[i];
  ad_parameters from = {.size = sizeof from, .values = list, .count = LAYERS};
  ad_tape *t = tape_with(n, every, (size_t)again);
  ad_tape_pool *pool;
  must(ad_tape_pool_create(0, &pool));
  ad_tape_share(t, pool);
  ad_tensor *w[LAYERS], *x = ad_constant(t, &n->x);
  for (size_t i = 0; i < LAYERS; i++) {
    const ad_tensor *enters = x;
    w[i] = ad_parameter(t, &from, i);
    x = ad_add(t, x, ad_linear(t, ad_sigmoid(t, ad_scale(t, x, 0.5)), w[i]));
    ad_recompute(enters, x, "layer");
  }
  x = ad_add(t, x, ad_input(t, &n->x));
  ad_tensor *loss = project(&n->w, t, ad_multiply(t, x, x), 40, &n->c);
  must(ad_backward_from(t, &loss, NULL, 1, two_passes ? AD_INPUTS_START : AD_LAST_START));
  if (two_passes) must(ad_backward_weights(t));
  for (int i = 0; i < LAYERS; i++) memcpy(gradient[i], ad_grad(w[i])->data, ad_array_bytes(&n->weight[i]));
  size_t bytes = ad_tape_pool_peak_bytes(pool);
  ad_tape_destroy(t);
  ad_tape_pool_destroy(pool);
  free(n->c.data);
  return bytes;
}

static void layers_run_again_in_the_second_pass(void **state) {
  static double right[LAYERS][WIDTH * WIDTH], found[LAYERS][WIDTH * WIDTH];
  net n = open_net();
  for (int two_passes = 0; two_passes < 2; two_passes++) {
    size_t kept = weights_of(&n, 0, two_passes, right), again = weights_of(&n, 1, two_passes, found);
    assert_memory_equal(right, found, sizeof right);
    assert_true(again < kept);
  }
  close_net(&n);
}

static void what_is_let_go_is_refused(void **state) {
  static const char *const every[] = {"*"};
  net n = open_net();
  ad_tape *t = tape_with(&n, every, 1);
  ad_tensor *x = ad_input(t, &n.x), *h = ad_sigmoid(t, x), *y = ad_multiply(t, h, h);
  ad_recompute(x, y, "layer");
  assert_null(ad_tensor_array(h)->data);
  assert_non_null(ad_tensor_array(y)->data);
  ad_scale(t, h, 2);
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  ad_tape_destroy(t);
  t = tape_with(&n, every, 1);
  x = ad_input(t, &n.x);
  y = ad_sigmoid(t, x);
  ad_recompute(y, x, "layer"); /* the wrong way around: x is a leaf, before y */
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  ad_tape_destroy(t);
  close_net(&n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_have_the_same_bits),
      cmocka_unit_test(numbers_drawn_again_would_show),
      cmocka_unit_test(layers_run_again_in_the_second_pass),
      cmocka_unit_test(what_is_let_go_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
