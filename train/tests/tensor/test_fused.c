/* Tests operations that communicate inside, or compute on a part, against their composition from law 2's table: the
 * operands are gathered, the whole is computed, the rank's part is taken. Values and gradients are compared on real
 * ranks in f64. Parts are uneven and empty, groups of size 1 and 3. */
#include "base/known_bugs.h"
#include "says.h"
#include "tensor/known_bugs.h"
#include "two_ways.h"

/* ---- cross-entropy over a sharded vocabulary ---- */

static ad_tensor *fused_loss(ad_tape *t, ad_tensor *const *x) { return ad_cross_entropy(t, x[0], x[1]); }
static ad_tensor *full_loss(ad_tape *t, ad_tensor *const *x) {
  return ad_cross_entropy(t, ad_all_gather(t, x[0], "tp", AD_I), x[1]);
}

static void compare_loss(const char *mesh, int64_t vocabulary) {
  compare((comparison){.mesh = mesh,
                       .inputs = {{"dp_shard=S0 tp=S2", SHAPE(3, 4, 5, vocabulary), 0},
                                  {"dp_shard=S0 tp=I", SHAPE(2, 4, 5), (int32_t)vocabulary}},
                       .input_count = 2,
                       .fused = fused_loss,
                       .composed = full_loss});
}

static void the_loss_of_a_sharded_vocabulary_is_that_of_the_full_one(void **state) {
  compare_loss("dp_shard=1 tp=1", 7);
  compare_loss("dp_shard=1 tp=2", 7);
  compare_loss("dp_shard=1 tp=3", 7);
  compare_loss("dp_shard=3 tp=2", 9);
  compare_loss("dp_shard=1 tp=3", 2); /* one rank has none of the vocabulary */
}

/* A NaN logit in the last rank's part, which is not the target, makes the loss NaN on every rank. */
static int no_number_comes_out(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_layout sharded, same;
  ad_tape *t;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  CHECK_OK(ad_mesh_create(context, &mesh));
  CHECK_OK(ad_layout_parse(mesh, "tp=S1", &sharded));
  CHECK_OK(ad_layout_parse(mesh, "tp=I", &same));
  CHECK_OK(ad_tape_create(comm, mesh, &options, &t));
  ad_array logits = make(comm, AD_F64, &SHAPE(2, 1, 6), &sharded, 1, 0),
           targets = make(comm, AD_I32, &SHAPE(1, 1), &same, 2, 5);
  ((int32_t *)targets.data)[0] = 0;
  if (ad_comm_rank(comm) == ad_comm_size(comm) - 1) ((double *)logits.data)[ad_array_numel(&logits) - 1] = NAN;
  ad_tensor *loss = ad_cross_entropy(t, ad_input(t, &logits), ad_constant(t, &targets));
  CHECK_OK(ad_tape_status(t));
  CHECK(isnan(ad_tensor_scalar(loss)));
  free(logits.data);
  free(targets.data);
  ad_tape_destroy(t);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_logit_that_is_no_number_is_the_loss_of_all_ranks(void **state) {
  run_ranks(1, no_number_comes_out, (void *)(uintptr_t) "tp=1");
  run_ranks(2, no_number_comes_out, (void *)(uintptr_t) "tp=2");
}

/* ---- lookup in a table that is sharded by rows ---- */

static ad_tensor *part_lookup(ad_tape *t, ad_tensor *const *x) {
  return ad_all_reduce(t, ad_embedding(t, x[0], x[1]), "tp", AD_I);
}
static ad_tensor *full_lookup(ad_tape *t, ad_tensor *const *x) {
  return ad_embedding(t, ad_all_gather(t, x[0], "tp", AD_I), x[1]);
}

/* `make` draws indices from -1 on, but a lookup needs indices from 0 on: -1 becomes 0. */
static ad_tensor *shifted(ad_tape *t, ad_tensor *const *x, ad_tensor *(*lookup)(ad_tape *, ad_tensor *const *)) {
  const ad_array *indices = ad_tensor_array(x[1]);
  for (size_t i = 0; i < ad_array_numel(indices); i++)
    if (((int32_t *)indices->data)[i] < 0) ((int32_t *)indices->data)[i] = 0;
  return lookup(t, x);
}
static ad_tensor *fused_lookup(ad_tape *t, ad_tensor *const *x) { return shifted(t, x, part_lookup); }
static ad_tensor *composed_lookup(ad_tape *t, ad_tensor *const *x) { return shifted(t, x, full_lookup); }

static void compare_lookup(const char *mesh, int64_t rows) {
  compare((comparison){
      .mesh = mesh,
      .inputs = {{"dp_shard=I tp=S0", SHAPE(2, rows, 3), 0}, {"dp_shard=I tp=I", SHAPE(2, 4, 5), (int32_t)rows}},
      .input_count = 2,
      .fused = fused_lookup,
      .composed = composed_lookup});
}

static void a_lookup_in_parts_is_that_in_the_full_table(void **state) {
  compare_lookup("dp_shard=1 tp=1", 7);
  compare_lookup("dp_shard=2 tp=3", 7);
  compare_lookup("dp_shard=1 tp=3", 2);
}

/* ---- attention ---- */

enum { HEAD_DIM = 4 };

static int sees_all;  // whether attention is without a mask, or causal

static ad_tensor *attention(ad_tape *t, ad_tensor *q, ad_tensor *k, ad_tensor *v) {
  return sees_all ? ad_attention_all(t, q, k, v, HEAD_DIM) : ad_attention(t, q, k, v, HEAD_DIM);
}
static ad_tensor *in_parts(ad_tape *t, ad_tensor *const *x) { return attention(t, x[0], x[1], x[2]); }
/* Instead of the ring: each rank gathers all keys and values, whose gradients are then reduce-scattered. */
static ad_tensor *with_gathered_keys(ad_tape *t, ad_tensor *const *x) {
  return attention(t, x[0], ad_all_gather(t, x[1], "cp", AD_R), ad_all_gather(t, x[2], "cp", AD_R));
}
/* Instead of the ring: every rank gathers everything, computes the whole and takes its part. */
static ad_tensor *on_full_zigzag(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *q = ad_all_gather(t, x[0], "cp", AD_I), *k = ad_all_gather(t, x[1], "cp", AD_I),
            *v = ad_all_gather(t, x[2], "cp", AD_I);
  return ad_convert(t, attention(t, q, k, v), "cp", AD_S_ZIGZAG(1));
}
static ad_tensor *on_full_plain(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *q = ad_all_gather(t, x[0], "cp", AD_I), *k = ad_all_gather(t, x[1], "cp", AD_I),
            *v = ad_all_gather(t, x[2], "cp", AD_I);
  return ad_convert(t, attention(t, q, k, v), "cp", AD_S(1));
}

static comparison ring_of(const char *mesh, const char *sharded, int64_t batch, int64_t seq, int64_t heads,
                          int64_t kv_heads) {
  return (comparison){.mesh = mesh,
                      .inputs = {{sharded, SHAPE(3, batch, seq, heads * HEAD_DIM), 0},
                                 {sharded, SHAPE(3, batch, seq, kv_heads * HEAD_DIM), 0},
                                 {sharded, SHAPE(3, batch, seq, kv_heads * HEAD_DIM), 0}},
                      .input_count = 3,
                      .fused = in_parts};
}

static void compare_ring(const char *mesh, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads) {
  comparison c = ring_of(mesh, "dp_shard=S0 cp=S1z", batch, seq, heads, kv_heads);
  c.composed = on_full_zigzag;
  compare(c);
  c.composed = with_gathered_keys;
  compare(c);
  c = ring_of(mesh, "dp_shard=S0 cp=S1", batch, seq, heads, kv_heads);
  c.composed = on_full_plain;
  compare(c);
}

static void attention_around_the_ring_is_that_of_the_full_values(void **state) {
  for (sees_all = 0; sees_all < 2; sees_all++) {
    compare_ring("dp_shard=1 cp=1", 2, 8, 2, 2);
    compare_ring("dp_shard=1 cp=2", 2, 8, 2, 1);
    compare_ring("dp_shard=1 cp=2", 2, 1, 2, 2);
    compare_ring("dp_shard=1 cp=3", 2, 13, 4, 2);  /* chunks of 2 and 3 rows */
    compare_ring("dp_shard=1 cp=4", 1, 300, 1, 1); /* several blocks of rows on a rank */
    compare_ring("dp_shard=1 cp=4", 2, 3, 2, 2);   /* some ranks have no row */
    compare_ring("dp_shard=3 cp=2", 2, 8, 2, 2);   /* one rank has no sample */
  }
}

static ad_tensor *heads_gathered(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *q = ad_all_gather(t, x[0], "tp", AD_I), *k = ad_all_gather(t, x[1], "tp", AD_I),
            *v = ad_all_gather(t, x[2], "tp", AD_I);
  return ad_convert(t, attention(t, q, k, v), "tp", AD_S(2));
}
/* Keys and values are whole on every rank; they were I, so their gradient is summed over the ranks. */
static ad_tensor *keys_on_all(ad_tape *t, ad_tensor *const *x) {
  return attention(t, x[0], ad_convert(t, x[1], "tp", AD_R), ad_convert(t, x[2], "tp", AD_R));
}
static ad_tensor *queries_gathered(ad_tape *t, ad_tensor *const *x) {
  return ad_convert(t, attention(t, ad_all_gather(t, x[0], "tp", AD_I), x[1], x[2]), "tp", AD_S(2));
}

static void compare_heads(const char *mesh, int64_t heads, int64_t kv_heads, int sharded) {
  const char *kv = sharded ? "tp=S2" : "tp=I";
  compare((comparison){.mesh = mesh,
                       .inputs = {{"tp=S2", SHAPE(3, 2, 6, heads * HEAD_DIM), 0},
                                  {kv, SHAPE(3, 2, 6, kv_heads * HEAD_DIM), 0},
                                  {kv, SHAPE(3, 2, 6, kv_heads * HEAD_DIM), 0}},
                       .input_count = 3,
                       .fused = sharded ? in_parts : keys_on_all,
                       .composed = sharded ? heads_gathered : queries_gathered});
}

static void grouped_heads_find_their_keys(void **state) {
  for (sees_all = 0; sees_all < 2; sees_all++) {
    compare_heads("tp=1", 4, 2, 1);
    compare_heads("tp=2", 4, 2, 1);
    compare_heads("tp=3", 6, 3, 1);
    compare_heads("tp=3", 6, 2, 0); /* fewer key heads than ranks */
    compare_heads("tp=4", 4, 1, 0);
    compare_heads("tp=2", 6, 3, 0);
  }
}

/* ---- the known bugs of ring attention ---- */

static ad_tensor *with_positions(ad_tape *t, ad_tensor *const *x) {
  return attention(t, ad_rotary(t, x[0], HEAD_DIM, 100), ad_rotary(t, x[1], HEAD_DIM, 100), x[2]);
}

static int differ(const double *a, const double *b, size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; i++) most = fmax(most, fabs(a[i] - b[i]));
  return most > 1e-6;
}

static int outcomes_differ(const outcome *a, const outcome *b) {
  int found = differ(a->value, b->value, a->value_count);
  for (int i = 0; i < INPUTS_MAX; i++) found |= differ(a->gradient[i], b->gradient[i], a->gradient_count[i]);
  return found;
}

/* Each known bug changes the numbers of every rank; the mistake in the mask cannot be made without a mask. */
static int bugs_show(ad_comm *comm, void *context) {
  size_t count;
  const ad_known_bug *bugs = ad_tensor_known_bugs(&count);
  rank_case r = case_open(comm, context);
  outcome right = run(comm, r.mesh, context, r.arrays, 1);
  for (size_t i = 0; i < count; i++) {
    if (!(bugs[i].needs & (AD_NEED_RING | AD_NEED_SHARDED_SEQUENCE))) continue;
    ad_known_bug_scene scene = {.rank = ad_comm_rank(comm)};
    int shows = !sees_all || !(bugs[i].needs & AD_NEED_MASKED_RING);
    ad_known_bug_inject(&bugs[i], &scene);
    outcome injected = run(comm, r.mesh, context, r.arrays, 1);
    ad_injections_clear();
    CHECK(scene.fired == shows);
    CHECK(outcomes_differ(&injected, &right) == shows);
    release(&injected);
  }
  release(&right);
  case_close(&r);
  return 0;
}

static void known_bugs_show_with_either_mask(void **state) {
  for (sees_all = 0; sees_all < 2; sees_all++) {
    for (int members = 2; members < 4; members++) {
      char mesh[32];
      snprintf(mesh, sizeof mesh, "dp_shard=1 cp=%d", members);
      comparison c = ring_of(mesh, "dp_shard=S0 cp=S1z", 2, 12, 2, 2);
      c.fused = with_positions;
      run_ranks(members, bugs_show, &c);
    }
  }
}

/* A rank that fails before a ring reports it to the other ranks, so that they do not wait for it. */
static int fails_before_the_ring(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_layout layout;
  ad_tape *t;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  CHECK_OK(ad_mesh_create("cp=2", &mesh));
  CHECK_OK(ad_layout_parse(mesh, "cp=S1z", &layout));
  CHECK_OK(ad_tape_create(comm, mesh, &options, &t));
  ad_array q = make(comm, AD_F64, &SHAPE(3, 1, 8, HEAD_DIM), &layout, 1, 0);
  ad_tensor *x = ad_input(t, &q);
  if (ad_comm_rank(comm) == 1) x = ad_rotary(t, x, 3, 10000); /* rank 1 fails here: a head's width must be even */
  ad_attention(t, x, x, x, HEAD_DIM);
  CHECK(ad_tape_status(t) == (ad_comm_rank(comm) ? AD_INVALID : AD_PEER_FAILED));
  CHECK_SAYS("head_dim");
  free(q.data);
  ad_tape_destroy(t);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_rank_that_fails_before_a_ring_reports_to_the_others(void **state) {
  run_ranks(2, fails_before_the_ring, NULL);
}

/* ---- the norm of each attention head ---- */

static ad_tensor *norm_of_own_heads(ad_tape *t, ad_tensor *const *x) {
  return ad_head_norm(t, x[0], ad_convert(t, x[1], "tp", AD_R), 1e-5);
}
static ad_tensor *norm_of_all_heads(ad_tape *t, ad_tensor *const *x) {
  return ad_convert(t, ad_head_norm(t, ad_all_gather(t, x[0], "tp", AD_I), x[1], 1e-5), "tp", AD_S(2));
}

static void the_norm_of_heads_sums_over_all_heads(void **state) {
  comparison c = {.mesh = "tp=3",
                  .inputs = {{"tp=S2", SHAPE(3, 2, 5, 6 * HEAD_DIM), 0}, {"tp=I", SHAPE(1, HEAD_DIM), 0}},
                  .input_count = 2,
                  .fused = norm_of_own_heads,
                  .composed = norm_of_all_heads};
  compare(c);
  c.mesh = "tp=1";
  compare(c);
}

/* ---- a bias that is added to a partial sum ---- */

/* x [rows, in] is sharded along `in` and the matrix by rows, so their product is P on tp; x[2] is the bias. */
static ad_tensor *bias_before_the_sum(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *bias = ad_once(t, ad_convert(t, x[2], "tp", AD_R), "tp");
  return ad_all_reduce(t, ad_add_row(t, ad_linear(t, x[0], x[1]), bias), "tp", AD_I);
}
static ad_tensor *bias_after_the_sum(ad_tape *t, ad_tensor *const *x) {
  return ad_add_row(t, ad_all_reduce(t, ad_linear(t, x[0], x[1]), "tp", AD_I), x[2]);
}

static void a_bias_on_a_partial_counts_once(void **state) {
  comparison c = {.mesh = "tp=3",
                  .inputs = {{"tp=S1", SHAPE(2, 5, 7), 0}, {"tp=S0", SHAPE(2, 7, 4), 0}, {"tp=I", SHAPE(1, 4), 0}},
                  .input_count = 3,
                  .fused = bias_before_the_sum,
                  .composed = bias_after_the_sum};
  compare(c);
  c.mesh = "tp=1";
  compare(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_loss_of_a_sharded_vocabulary_is_that_of_the_full_one),
      cmocka_unit_test(a_logit_that_is_no_number_is_the_loss_of_all_ranks),
      cmocka_unit_test(a_rank_that_fails_before_a_ring_reports_to_the_others),
      cmocka_unit_test(a_lookup_in_parts_is_that_in_the_full_table),
      cmocka_unit_test(attention_around_the_ring_is_that_of_the_full_values),
      cmocka_unit_test(grouped_heads_find_their_keys),
      cmocka_unit_test(known_bugs_show_with_either_mask),
      cmocka_unit_test(the_norm_of_heads_sums_over_all_heads),
      cmocka_unit_test(a_bias_on_a_partial_counts_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
