/* Tests published pipeline bugs that a table shows: each as the code base had it, and the law that it breaks. Those
 * that no table shows are in core/docs/pipeline.md, with what catches them. */
#include <stdio.h>
#include "judged.h"
#include "says.h"

/* A generated schedule's table, with these parts (communication) beside compute; 0: compute alone. */
static ad_table *made(const char *name, int stages, int microbatches, int ranks, unsigned parts) {
  ad_table *table;
  ad_table_shape shape = {.size = sizeof shape, .stages = stages, .microbatches = microbatches, .ranks = ranks};
  ad_table_lowering lowering = {.size = sizeof lowering, .parts = parts};
  assert_int_equal(ad_table_make(name, &shape, &table), AD_OK);
  if (parts) assert_int_equal(ad_table_lower(table, &lowering), AD_OK);
  return table;
}

/* A table of core/tests/schedule/pytorch. */
static ad_table *of_pytorch(const char *name) {
  char path[512];
  ad_table *table;
  snprintf(path, sizeof path, "%s/core/tests/schedule/pytorch/%s.csv", AD_TEST_SOURCE, name);
  assert_int_equal(ad_table_read(path, &table, NULL), AD_OK);
  return table;
}

/* A table in which each action stands `times` times; destroys `of`. */
static ad_table *repeated(ad_table *of, int (*times)(const ad_table *of, int32_t rank, const ad_action *action)) {
  ad_table *table;
  assert_int_equal(ad_table_create(ad_table_rank_count(of), &table), AD_OK);
  for (int32_t r = 0; r < ad_table_rank_count(of); r++)
    for (size_t i = 0; i < ad_table_action_count(of, r); i++)
      for (int n = times(of, r, ad_table_action(of, r, i)); n > 0; n--)
        assert_int_equal(ad_table_add(table, r, ad_table_action(of, r, i)), AD_OK);
  ad_table_destroy(of);
  return table;
}

enum { WITH_ALL = AD_TABLE_TRANSFERS | AD_TABLE_REDUCTIONS | AD_TABLE_END };

/* ---- bugs in reductions ---- */

/* pytorch/pytorch#144530: I and W called autograd.grad(), which does not run DDP's hooks, and DDP reduced only in its
 * hooks: a schedule without B reduced nothing, and the optimizer stepped. */
static void zero_bubble_passes_the_hooks_of_ddp_by(void **state) {
  ad_table_lowering without = {.size = sizeof without, .parts = AD_TABLE_TRANSFERS | AD_TABLE_END};
  ad_table_lowering whole = {.size = sizeof whole, .parts = WITH_ALL};
  ad_table *table = of_pytorch("interleaved-zb.compute");
  assert_int_equal(ad_table_lower(table, &without), AD_INVALID);
  assert_says("rank 0", "stage 0", "0REDUCE");
  assert_int_equal(ad_table_lower(table, &whole), AD_OK);
  ad_table_destroy(table);
}

/* pytorch/pytorch#144535: the hook that waits for FSDP's reductions was not called, so norm and optimizer read
 * gradients whose reduction was still running; only the next step waited for it. */
static void the_optimizer_does_not_wait_for_the_reduction(void **state) {
  breaks(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,SUMS,NORM,0UPDATE,0WAIT_REDUCE_GRAD\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,SUMS,NORM,1UPDATE,1WAIT_REDUCE_GRAD\n",
      "end", "rank 0", "place 11", "0UPDATE", "stage 0", "0WAIT_REDUCE");
}

/* deepspeedai/DeepSpeed#7985: the all-reduce ran before the last microbatch's gradient was added. */
static void a_reduction_before_the_boundary_microbatch(void **state) {
  breaks("0F0,0B0,0F1,0REDUCE,0B1,SUMS,NORM,0UPDATE\n", "reduced", "rank 0", "place 4", "0B1", "stage 0", "place 3");
}

/* ---- bugs in what all ranks do together ---- */

static int twice_the_norm(const ad_table *of, int32_t rank, const ad_action *action) {
  return action->kind == AD_ACTION_NORM ? 2 : 1;
}

/* pytorch/torchtitan#596: clip_grad_norm_ was called for each stage of a rank. (A table cannot show that the norm was
 * not summed over ranks either: with one stage a rank it has one NORM.) */
static void a_norm_for_each_stage_of_a_rank(void **state) {
  table_holds(made("interleaved", 4, 4, 2, WITH_ALL), NULL);
  table_breaks(repeated(made("interleaved", 4, 4, 2, WITH_ALL), twice_the_norm), NULL, "end", "rank 0", "place 44",
               "NORM", "place 43");
}

static int not_where_layers_are_dense(const ad_table *of, int32_t rank, const ad_action *action) {
  return action->kind != AD_ACTION_SUMS || rank != 0;
}

/* NVIDIA/Megatron-LM#1444: balance losses were summed over the pipeline by the stages that have experts. The first 3
 * layers were dense, so the first of 8 stages of 2 layers had no experts, and the others waited for it. */
static void a_stage_without_experts_takes_no_part_in_the_sums(void **state) {
  table_holds(made("1f1b", 8, 8, 8, WITH_ALL), NULL);
  table_breaks(repeated(made("1f1b", 8, 8, 8, WITH_ALL), not_where_layers_are_dense), NULL, "end", "rank 0", "SUMS");
}

/* ---- bugs in transfers ---- */

/* pytorch/pytorch#172668: receives were deferred to their use (#172833, these lists), so each rank sent first; if a
 * send lasts until it is received, neither ended: "rank 0: 0SEND_F1, 2RECV_F0; rank 1: 1SEND_F0, 1RECV_F1". */
static void both_ranks_send_before_they_receive(void **state) {
  const char *deferred =
      "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,0F2,0SEND_F2,2RECV_B0,2B0,2SEND_B0,0F3,"
      "0SEND_F3,2RECV_B1,2B1,2SEND_B1,2RECV_F2,2F2,2SEND_F2,0RECV_B0,0B0,2RECV_F3,2F3,2SEND_F3,0RECV_B1,0B1,2RECV_B2,"
      "2B2,2SEND_B2,2RECV_B3,2B3,2SEND_B3,2REDUCE_GRAD,0RECV_B2,0B2,0RECV_B3,0B3,0REDUCE_GRAD\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,1RECV_F2,1F2,"
      "1SEND_F2,1RECV_B0,1B0,1SEND_B0,1RECV_F3,1F3,1SEND_F3,1RECV_B1,1B1,1SEND_B1,3RECV_F2,3F2,3B2,3SEND_B2,3RECV_F3,"
      "3F3,3B3,3SEND_B3,3REDUCE_GRAD,1RECV_B2,1B2,1SEND_B2,1RECV_B3,1B3,1SEND_B3,1REDUCE_GRAD\n";
  holds_with(deferred, &(ad_table_options){.size = sizeof(ad_table_options), .buffered = 1});
  breaks(deferred, "circle", "rank 0", "place 3", "0SEND_F1", "1RECV_F1", "rank 1", "place 2", "1SEND_F0", "2RECV_F0",
         "place 4");
}

/* pytorch/pytorch#126419: a 1F1B in which each rank sent before it received hung if sends block. */
static void one_f_one_b_that_sends_on_both_sides(void **state) {
  breaks(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
      "circle", "rank 1", "place 3", "1SEND_B0", "0RECV_B0", "rank 0");
}

/* NVIDIA/Megatron-LM#1450: with two ranks of two stages each the next rank is the previous one too. A rank sends the
 * value first and then the gradient, and the other receives the gradient first: it takes the value for it. */
static void a_value_is_taken_for_a_gradient(void **state) {
  ad_table_options buffered = {.size = sizeof buffered, .buffered = 1};
  breaks_with(
      "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,2RECV_B0,2B0,0F2,0SEND_F2,2SEND_B0,"
      "2RECV_B1,2B1,2SEND_B1,0RECV_B0,0B0,2RECV_F2,2F2,2SEND_F2,0RECV_B1,0B1,2RECV_B2,2B2,2SEND_B2,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,1RECV_B0,1B0,"
      "1SEND_B0,1RECV_F2,1F2,1SEND_F2,1RECV_B1,1B1,1SEND_B1,3RECV_F2,3F2,3B2,3SEND_B2,1RECV_B2,1B2,1SEND_B2\n",
      &buffered, "pairs", "rank 1", "place 14", "1RECV_B0", "number 4", "rank 0", "0SEND_F2", "place 13", "stage 0",
      "microbatch 2");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zero_bubble_passes_the_hooks_of_ddp_by),
      cmocka_unit_test(the_optimizer_does_not_wait_for_the_reduction),
      cmocka_unit_test(a_reduction_before_the_boundary_microbatch),
      cmocka_unit_test(a_norm_for_each_stage_of_a_rank),
      cmocka_unit_test(a_stage_without_experts_takes_no_part_in_the_sums),
      cmocka_unit_test(both_ranks_send_before_they_receive),
      cmocka_unit_test(one_f_one_b_that_sends_on_both_sides),
      cmocka_unit_test(a_value_is_taken_for_a_gradient),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
