/* Tests the stack of a rank's sums of leaves: its nodes, the order in which they are summed, its memory, and what cannot
 * be pushed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "aligned.h"
#include "reduce/stack.h"
#include "says.h"

enum { MOST = 24, FEW = 5, MANY = 5003 };

static double value_of(int64_t leaf, size_t element) { return drawn_value(3, (uint64_t)leaf, element); }

/* Element `element` of a node's sum. A node [first, first + count) is node (k, first / 2^k) for the least 2^k that is
 * not below count. */
static double sum_of_node(ad_node node, int64_t leaves, ad_dtype dtype, size_t element) {
  double leaf[MOST];
  int k = 0;
  for (int64_t i = 0; i < leaves; i++) leaf[i] = value_of(i, element);
  while ((int64_t)1 << k < node.count) k++;
  return node_sum(dtype, leaf, leaves, k, node.first >> k);
}

/* Makes an empty stack, without memory, with as many levels as it needs if the leaves [first, first + count) arrive one
 * by one. */
static ad_node_stack stack_for(int64_t first, int64_t count, int64_t leaves, ad_dtype dtype, size_t numel) {
  ad_node_stack stack = {.leaves = leaves, .dtype = dtype, .numel = numel, .levels = 1};
  ad_node nodes[AD_NODES_MAX];
  for (int64_t pushed = 0; pushed < count; pushed++) {
    size_t needed = ad_nodes_of(first, pushed, leaves, nodes) + 1;
    if (needed > stack.levels) stack.levels = needed;
  }
  return stack;
}

static void give_memory(ad_node_stack *stack) {
  size_t bytes = ad_stack_bytes(stack);
  stack->memory = malloc(bytes + 1);
  assert_non_null(stack->memory);
  memset(stack->memory, 0x7f, bytes + 1);
}

/* Checks that the byte after the memory still has the value that give_memory wrote, and frees the memory. */
static void free_memory(ad_node_stack *stack) {
  assert_int_equal(stack->memory[ad_stack_bytes(stack)], 0x7f);
  free(stack->memory);
}

static void put_leaf(const ad_node_stack *stack, int64_t leaf, void *memory) {
  double values[MANY];
  for (size_t e = 0; e < stack->numel; e++) values[e] = value_of(leaf, e);
  assert_int_equal(ad_cast(memory, stack->dtype, values, AD_F64, stack->numel), AD_OK);
}

/* Checks level `at` of the stack at the address where a collective would read it: levels lie one after another. */
static void check_level(const ad_node_stack *stack, size_t at) {
  size_t apart = stack->numel * ad_dtype_size(stack->dtype);
  double found[MANY];
  assert_int_equal(ad_cast(found, AD_F64, stack->memory + at * apart, stack->dtype, stack->numel), AD_OK);
  for (size_t e = 0; e < stack->numel; e++)
    assert_true(found[e] == sum_of_node(stack->node[at], stack->leaves, stack->dtype, e));
}

static void settle(ad_node_stack *stack) {
  while (ad_stack_settle(stack)) {
  }
}

static ad_status push(ad_node_stack *stack, ad_node node) {
  ad_status status = ad_stack_place(stack, node, 0);
  settle(stack);
  return status;
}

/* Pushes leaves [first, first + count) and checks all levels after each push. Returns the most levels that were used. */
static size_t push_all(ad_node_stack *stack, int64_t first, int64_t count) {
  ad_node expected[AD_NODES_MAX];
  size_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    void *memory;
    if (stack->count + 1 > most) most = stack->count + 1;
    assert_int_equal(ad_stack_next(stack, (ad_node){first + i, 1}, &memory), AD_OK);
    put_leaf(stack, first + i, memory);
    assert_int_equal(push(stack, (ad_node){first + i, 1}), AD_OK);
    assert_int_equal(stack->count, ad_nodes_of(first, i + 1, stack->leaves, expected));
    assert_memory_equal(stack->node, expected, stack->count * sizeof *expected);
    for (size_t at = 0; at < stack->count; at++) check_level(stack, at);
  }
  return most;
}

static void the_stack_has_the_sums_of_the_nodes_of_what_was_pushed(void **state) {
  (void)state;
  for (int64_t leaves = 1; leaves <= MOST; leaves++)
    for (int64_t first = 0; first < leaves; first++)
      for (int64_t count = 1; first + count <= leaves; count++) {
        ad_dtype dtype = (first + count) % 2 ? AD_F32 : AD_F64;
        ad_node_stack stack = stack_for(first, count, leaves, dtype, FEW);
        give_memory(&stack);
        assert_int_equal(push_all(&stack, first, count), stack.levels);
        free_memory(&stack);
      }
}

static void a_second_step_has_the_sums_of_the_first(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(4, 7, MOST, AD_F32, FEW);
  give_memory(&stack);
  for (int step = 0; step < 2; step++) {
    stack.count = 0;
    push_all(&stack, 4, 7);
  }
  free_memory(&stack);
}

static void all_elements_of_long_values_are_summed(void **state) {
  (void)state;
  for (ad_dtype dtype = AD_F64; dtype <= AD_F32; dtype++) {
    ad_node_stack stack = stack_for(0, 8, 8, dtype, MANY);
    give_memory(&stack);
    push_all(&stack, 0, 8);
    free_memory(&stack);
  }
}

static void memory_is_what_the_levels_need(void **state) {
  (void)state;
  ad_node_stack one = stack_for(3, 1, 16, AD_F32, 5), sixteen = stack_for(0, 16, 16, AD_F32, 16),
                odd = stack_for(0, 4, 16, AD_F64, 9), none = stack_for(2, 0, 16, AD_F64, 4);
  assert_int_equal(ad_stack_bytes(&one), 20);         /* one value */
  assert_int_equal(ad_stack_bytes(&sixteen), 5 * 64); /* 1 + log2(16) values */
  assert_int_equal(ad_stack_bytes(&odd), 3 * 72);     /* 1 + log2(4) values */
  assert_int_equal(ad_stack_bytes(&none), 32);        /* there is always one level */
}

/* Larger nodes are pushed as well, such as the results of collectives. */
static void nodes_of_many_leaves_are_pushed(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(0, 12, 12, AD_F32, 0);
  assert_int_equal(push(&stack, (ad_node){0, 8}), AD_OK);
  assert_int_equal(push(&stack, (ad_node){8, 2}), AD_OK);
  assert_int_equal(stack.count, 2);
  assert_int_equal(push(&stack, (ad_node){10, 2}), AD_OK);
  assert_int_equal(ad_stack_expect(&stack, 0, 12), AD_OK);
}

static void refused(ad_node_stack *stack, int64_t first, int64_t count) {
  ad_node_stack before = *stack;
  void *memory = &before;
  assert_int_equal(ad_stack_next(stack, (ad_node){first, count}, &memory), AD_TYPE);
  assert_ptr_equal(memory, &before);
  assert_int_equal(push(stack, (ad_node){first, count}), AD_TYPE);
  assert_memory_equal(stack, &before, sizeof before);
}

static void a_leaf_is_in_the_sum_once_and_in_order(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(4, 6, 12, AD_F32, 0);
  assert_int_equal(push(&stack, (ad_node){4, 2}), AD_OK);
  refused(&stack, 4, 1); /* a leaf of this step, or of the step before */
  assert_says("[4, 5)", "[4, 6)", "12");
  refused(&stack, 5, 2); /* leaf 5 twice */
  refused(&stack, 7, 1); /* leaf 6 left out */
  refused(&stack, 6, 7); /* a leaf that does not exist */
  refused(&stack, 6, 0);
  refused(&stack, 3, 1);
  assert_int_equal(push(&stack, (ad_node){6, 1}), AD_OK);
}

static void there_is_no_memory_for_leaves_of_other_ranks(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(4, 1, 12, AD_F32, 0);
  assert_int_equal(push(&stack, (ad_node){4, 1}), AD_OK);
  refused(&stack, 5, 1);
  assert_says("5", "1");
}

static void a_sum_that_is_not_complete_is_refused(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(0, 8, 8, AD_F32, 0);
  assert_int_equal(ad_stack_expect(&stack, 0, 4), AD_TYPE);
  assert_says("[0, 4)", "0");
  assert_int_equal(push(&stack, (ad_node){0, 2}), AD_OK);
  assert_int_equal(push(&stack, (ad_node){2, 1}), AD_OK);
  assert_int_equal(ad_stack_expect(&stack, 0, 4), AD_TYPE);
  assert_says("[0, 4)", "2", "[0, 2)", "[2, 3)");
  assert_int_equal(push(&stack, (ad_node){3, 1}), AD_OK);
  assert_int_equal(ad_stack_expect(&stack, 0, 4), AD_OK);
  assert_int_equal(ad_stack_expect(&stack, 0, 2), AD_TYPE);
  assert_int_equal(ad_stack_expect(&stack, 2, 4), AD_TYPE);
}

/* Lets a node arrive as a collective's result, and settles the stack: the sums are the same as with pushes. */
static void place(ad_node_stack *stack, int64_t first, int64_t count, int adds) {
  ad_node node = {first, count};
  size_t before = stack->count;
  assert_int_equal(ad_stack_adds(stack, node), adds);
  assert_int_equal(ad_stack_place(stack, node, 1), AD_OK);
  assert_int_equal(stack->at, before - (size_t)adds);
  assert_int_equal(ad_stack_used(stack), before + !adds);
  settle(stack);
}

static void what_collectives_bring_is_added_to_its_sibling(void **state) {
  (void)state;
  ad_node_stack stack = stack_for(0, 12, 12, AD_F32, 0);
  place(&stack, 0, 2, 0);
  ad_node_stack above = stack; /* the value can also arrive above the top, and be added when the stack is settled */
  assert_int_equal(ad_stack_place(&above, (ad_node){2, 2}, 0), AD_OK);
  assert_int_equal(above.count, 1); /* the value has not become the top yet */
  assert_int_equal(ad_stack_used(&above), 2);
  assert_int_equal(ad_stack_settle(&above), AD_STACK_BROUGHT);
  assert_int_equal(above.count, 2);
  assert_int_equal(ad_stack_settle(&above), AD_STACK_SUMMED);
  assert_int_equal(above.count, 1);
  assert_int_equal(ad_stack_settle(&above), AD_STACK_SETTLED);
  place(&stack, 2, 2, 1);
  place(&stack, 4, 2, 0);
  assert_int_equal(stack.count, 2);
  place(&stack, 6, 2, 1);
  assert_int_equal(ad_stack_expect(&stack, 0, 8), AD_OK);
  ad_node_stack before = stack;
  assert_int_equal(ad_stack_place(&stack, (ad_node){10, 2}, 1), AD_TYPE); /* leaves 8 and 9 left out */
  assert_says("[10, 12)", "[0, 8)", "12");
  assert_int_equal(ad_stack_place(&stack, (ad_node){6, 2}, 1), AD_TYPE);
  assert_memory_equal(&stack, &before, sizeof before);
  place(&stack, 8, 4, 1); /* the last child may be smaller */
  assert_int_equal(ad_stack_expect(&stack, 0, 12), AD_OK);
}

/* The stack of one of two replicas, which have leaves [8, 10) and [10, 12) of the second segment. The sum of leaves [0,
 * 8), of the first segment, is already a sum over both replicas, and is set apart. */
static ad_node_stack second_segment(int64_t first) {
  ad_node_stack stack = stack_for(0, 12, 12, AD_F32, 0);
  assert_int_equal(push(&stack, (ad_node){0, 8}), AD_OK);
  stack.apart = 1;
  assert_int_equal(push(&stack, (ad_node){first, 1}), AD_OK);
  assert_int_equal(push(&stack, (ad_node){first + 1, 1}), AD_OK);
  assert_int_equal(ad_stack_expect(&stack, first, 2), AD_OK);
  return stack;
}

static void sums_over_more_ranks_stay_apart_until_ranks_have_added_theirs(void **state) {
  (void)state;
  for (int64_t first = 8; first <= 10; first += 2) {
    ad_node_stack stack = second_segment(first);
    assert_int_equal(ad_stack_widen(&stack, (ad_node){8, 4}), AD_OK);
    assert_true(stack.at == 1 && stack.arriving == 1); /* the sum over both replicas replaces the rank's own sum */
    stack.apart = 0;
    settle(&stack);
    assert_int_equal(ad_stack_expect(&stack, 0, 12), AD_OK);
  }
  /* one replica has all leaves of the segment, the other none */
  ad_node_stack all = stack_for(0, 12, 12, AD_F32, 0);
  assert_int_equal(push(&all, (ad_node){0, 8}), AD_OK);
  all.apart = 1;
  assert_int_equal(ad_stack_adds(&all, (ad_node){8, 4}), 0);
  all.apart = 0;
  assert_int_equal(ad_stack_adds(&all, (ad_node){8, 4}), 1);
  all.leaves = 8;
  assert_int_equal(ad_stack_adds(&all, (ad_node){8, 0}), 0); /* a round without a leaf */
  all.leaves = 12;
  all.apart = 1;
  assert_int_equal(push(&all, (ad_node){8, 4}), AD_OK);
  assert_int_equal(all.count, 2);
}

static void a_sum_is_not_widened_to_leaves_that_do_not_fit(void **state) {
  (void)state;
  ad_node_stack stack = second_segment(10), before = stack;
  assert_int_equal(ad_stack_widen(&stack, (ad_node){8, 2}), AD_TYPE); /* without the rank's own */
  assert_says("[8, 10)", "[10, 12)");
  assert_int_equal(ad_stack_widen(&stack, (ad_node){10, 2}), AD_TYPE); /* [8, 10) left out */
  assert_says("[10, 12)", "[0, 8)");
  assert_memory_equal(&stack, &before, sizeof before);
  stack.count = 1;
  for (int64_t leaf = 8; leaf < 11; leaf++) assert_int_equal(push(&stack, (ad_node){leaf, 1}), AD_OK);
  before = stack;
  for (int count = 1; count < 4; count += 2) { /* a rank may have no sum or several sums of its own */
    stack = before;
    stack.count = (size_t)count;
    assert_int_equal(ad_stack_widen(&stack, (ad_node){8, 4}), AD_OK);
    stack.apart = 0;
    settle(&stack);
    assert_int_equal(ad_stack_expect(&stack, 0, 12), AD_OK);
  }
}

static void write_node(const ad_node_stack *stack, size_t level, ad_node node) {
  double values[FEW];
  for (size_t e = 0; e < FEW; e++) values[e] = sum_of_node(node, stack->leaves, stack->dtype, e);
  assert_int_equal(ad_cast(ad_stack_level(stack, level), stack->dtype, values, AD_F64, FEW), AD_OK);
}

/* Leaves [4, 12) of 14 are two nodes: their sums are written above the values that the collective reads, and are then
 * moved down over those values. */
static void several_sums_do_not_form_where_a_collective_reads(void **state) {
  (void)state;
  for (size_t own = 0; own < 3; own++) {
    ad_node_stack stack = stack_for(0, 14, 14, AD_F64, FEW);
    stack.levels = own + 3;
    give_memory(&stack);
    write_node(&stack, 0, (ad_node){0, 4});
    assert_int_equal(push(&stack, (ad_node){0, 4}), AD_OK);
    stack.apart = 1;
    for (size_t i = 0; i < own; i++) assert_int_equal(push(&stack, (ad_node){5 + (int64_t)i, 1}), AD_OK);
    assert_int_equal(ad_stack_widen(&stack, (ad_node){4, 8}), AD_OK);
    assert_true(stack.at == 1 + own && stack.arriving == 2 && ad_stack_used(&stack) == own + 3);
    write_node(&stack, stack.at, (ad_node){4, 4});
    write_node(&stack, stack.at + 1, (ad_node){8, 4});
    stack.apart = 0;
    settle(&stack);
    assert_int_equal(ad_stack_expect(&stack, 0, 12), AD_OK);
    for (size_t level = 0; level < 2; level++) check_level(&stack, level);
    free_memory(&stack);
    stack.levels--;
    stack.memory = NULL;
    stack.count = stack.apart = 1;
    stack.node[0] = (ad_node){0, 4};
    for (size_t i = 0; i < own; i++) assert_int_equal(push(&stack, (ad_node){5 + (int64_t)i, 1}), AD_OK);
    assert_int_equal(ad_stack_widen(&stack, (ad_node){4, 8}), AD_TYPE);
    assert_says("leaf 4");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_stack_has_the_sums_of_the_nodes_of_what_was_pushed),
      cmocka_unit_test(a_second_step_has_the_sums_of_the_first),
      cmocka_unit_test(all_elements_of_long_values_are_summed),
      cmocka_unit_test(memory_is_what_the_levels_need),
      cmocka_unit_test(nodes_of_many_leaves_are_pushed),
      cmocka_unit_test(a_leaf_is_in_the_sum_once_and_in_order),
      cmocka_unit_test(there_is_no_memory_for_leaves_of_other_ranks),
      cmocka_unit_test(a_sum_that_is_not_complete_is_refused),
      cmocka_unit_test(what_collectives_bring_is_added_to_its_sibling),
      cmocka_unit_test(sums_over_more_ranks_stay_apart_until_ranks_have_added_theirs),
      cmocka_unit_test(a_sum_is_not_widened_to_leaves_that_do_not_fit),
      cmocka_unit_test(several_sums_do_not_form_where_a_collective_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
