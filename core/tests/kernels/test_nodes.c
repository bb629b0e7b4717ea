/* Tests the aligned tree over leaves against its definition: node (k, i) is the leaves [i 2^k, (i + 1) 2^k), cut off at
 * the last leaf. Every range of up to 40 leaves is tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "kernels/nodes.h"
#include "tree_order.h"

enum { LEAVES = 40, LEVELS = 7 };

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns node (k, i) of a tree over `leaves` leaves. */
static ad_node node_at(int k, int64_t i, int64_t leaves) {
  int64_t first = lesser(i << k, leaves), end = lesser((i + 1) << k, leaves);
  return (ad_node){first, end - first};
}

static int is_same(ad_node a, ad_node b) { return a.first == b.first && a.count == b.count; }

/* Returns the largest node that has this leaf and is inside [first, end). */
static ad_node largest_inside(int64_t leaf, int64_t first, int64_t end, int64_t leaves) {
  ad_node largest = {leaf, 1};
  for (int k = 0; k < LEVELS; k++) {
    ad_node node = node_at(k, leaf >> k, leaves);
    if (node.first >= first && node.first + node.count <= end) largest = node;
  }
  return largest;
}

static void check_range(int64_t first, int64_t end, int64_t leaves) {
  ad_node nodes[AD_NODES_MAX];
  size_t count = ad_nodes_of(first, end - first, leaves, nodes), i = 0;
  for (int64_t leaf = first; leaf < end; leaf += nodes[i++].count) {
    assert_true(i < count);
    assert_true(is_same(nodes[i], largest_inside(leaf, first, end, leaves)));
  }
  assert_int_equal(i, count);
}

static void a_range_consists_of_the_largest_nodes_inside_it(void **state) {
  for (int64_t leaves = 0; leaves <= LEAVES; leaves++)
    for (int64_t first = 0; first <= leaves; first++)
      for (int64_t end = first; end <= leaves; end++) check_range(first, end, leaves);
}

static void a_range_of_many_leaves_has_no_more_nodes_than_the_limit(void **state) {
  ad_node nodes[AD_NODES_MAX];
  int64_t leaves = INT64_C(1) << 62;
  assert_int_equal(ad_nodes_of(1, leaves - 2, leaves, nodes), 122);
  assert_int_equal(ad_nodes_of(0, leaves, leaves, nodes), 1);
  assert_int_equal(nodes[0].count, leaves);
}

/* Returns 1 if `lower` and `upper` are, by the definition, the two children of some node. */
static int are_children(ad_node lower, ad_node upper, int64_t leaves) {
  for (int k = 0; k < LEVELS; k++)
    for (int64_t i = 0; i << k < leaves; i += 2)
      if (is_same(lower, node_at(k, i, leaves)) && is_same(upper, node_at(k, i + 1, leaves))) return 1;
  return 0;
}

static void siblings_are_the_children_of_one_node(void **state) {
  enum { NODES = LEVELS * LEAVES };
  for (int64_t leaves = 1; leaves <= LEAVES; leaves++) {
    ad_node nodes[NODES];
    size_t count = 0;
    for (int k = 0; k < LEVELS; k++)
      for (int64_t i = 0; i << k < leaves; i++) nodes[count++] = node_at(k, i, leaves);
    for (size_t a = 0; a < count; a++)
      for (size_t b = 0; b < count; b++)
        assert_int_equal(ad_nodes_are_siblings(nodes[a], nodes[b], leaves), are_children(nodes[a], nodes[b], leaves));
  }
}

static void the_lower_child_has_the_largest_power_of_two_below(void **state) {
  for (int64_t leaves = 2; leaves <= LEAVES; leaves++) {
    ad_node lower = {0, (int64_t)ad_node_lower((size_t)leaves)};
    assert_true(are_children(lower, (ad_node){lower.count, leaves - lower.count}, leaves));
  }
  assert_true(ad_node_lower(((size_t)1 << 62) + 1) == (size_t)1 << 62);
}

/* Adds the nodes of [first, end) to those in `sums`: siblings at the end of the list become their parent. */
static size_t push_range(ad_node *sums, size_t count, int64_t first, int64_t end, int64_t leaves) {
  ad_node nodes[AD_NODES_MAX];
  size_t pushed = ad_nodes_of(first, end - first, leaves, nodes);
  for (size_t i = 0; i < pushed; i++) {
    sums[count++] = nodes[i];
    while (count > 1 && ad_nodes_are_siblings(sums[count - 2], sums[count - 1], leaves)) {
      sums[count - 2].count += sums[count - 1].count;
      count--;
    }
  }
  return count;
}

static void check_parts(const int64_t *cuts, int64_t leaves) {
  ad_node sums[3 * AD_NODES_MAX], whole[AD_NODES_MAX];
  size_t count = 0;
  for (int part = 0; part < 3; part++) count = push_range(sums, count, cuts[part], cuts[part + 1], leaves);
  assert_int_equal(ad_nodes_of(cuts[0], cuts[3] - cuts[0], leaves, whole), count);
  assert_memory_equal(sums, whole, count * sizeof *whole);
}

static void the_nodes_of_neighbouring_ranges_add_up_to_those_of_their_union(void **state) {
  for (int64_t leaves = 1; leaves <= LEAVES; leaves++)
    for (int64_t first = 0; first < leaves; first++)
      for (int64_t end = first; end <= leaves; end++)
        for (int64_t b = first; b <= end; b++)
          for (int64_t a = first; a <= b; a++) check_parts((int64_t[]){first, a, b, end}, leaves);
}

/* ---- when the tree over members makes the same additions as the tree over leaves ---- */

/* An addition of the sums of leaves [first, cut) and [cut, end). */
typedef struct addition {
  int64_t first, cut, end;
} addition;
enum { MEMBERS = 16 };

/* Lists the additions of the tree over members [a, b), children before parents. */
static size_t list_by_members(const int64_t *starts, size_t a, size_t b, addition *out) {
  if (b - a < 2) return 0;
  size_t cut = tree_cut(a, b), count = list_by_members(starts, a, cut, out);
  count += list_by_members(starts, cut, b, out + count);
  out[count] = (addition){starts[a], starts[cut], starts[b]};
  return count + 1;
}

/* Lists the additions of the tree over leaves below node (k, i), except those within one member's leaves. Returns
 * SIZE_MAX if the tree adds only a part of a member's leaves to other members' leaves. */
static size_t list_by_leaves(const int64_t *starts, size_t members, int k, int64_t i, int64_t leaves, addition *out) {
  ad_node node = node_at(k, i, leaves);
  for (size_t m = 0; m < members; m++)
    if (is_same(node, (ad_node){starts[m], starts[m + 1] - starts[m]})) return 0;
  if (!k) return SIZE_MAX;
  ad_node upper = node_at(k - 1, 2 * i + 1, leaves);
  size_t count = list_by_leaves(starts, members, k - 1, 2 * i, leaves, out);
  if (!upper.count || count == SIZE_MAX) return count;
  size_t more = list_by_leaves(starts, members, k - 1, 2 * i + 1, leaves, out + count);
  if (more == SIZE_MAX) return more;
  out[count + more] = (addition){node.first, upper.first, upper.first + upper.count};
  return count + more + 1;
}

/* Returns, by the definition, what ad_nodes_follow_members should return. */
static int should_follow(const int64_t *starts, size_t members, int64_t leaves) {
  addition by_members[MEMBERS], by_leaves[LEAVES];
  ad_node whole = {starts[0], starts[members] - starts[0]};
  for (size_t m = 0; m < members; m++)
    if (starts[m] == starts[m + 1]) return 0;
  for (int k = 0; k < LEVELS; k++)
    for (int64_t i = 0; i << k < leaves; i++) {
      if (!is_same(whole, node_at(k, i, leaves))) continue;
      size_t count = list_by_leaves(starts, members, k, i, leaves, by_leaves);
      return count == list_by_members(starts, 0, members, by_members) &&
             !memcmp(by_members, by_leaves, count * sizeof *by_leaves);
    }
  return 0;
}

/* Tries every way to continue starts[0 .. members] with further members. Returns how many of them follow the tree. */
static int try_members(int64_t *starts, size_t members, int64_t leaves) {
  int follow = 0;
  if (members) {
    follow = ad_nodes_follow_members(starts, members, leaves);
    assert_int_equal(follow, should_follow(starts, members, leaves));
  }
  for (int64_t end = starts[members]; members < 5 && end <= leaves; end++) {
    starts[members + 1] = end;
    follow += try_members(starts, members + 1, leaves);
  }
  return follow;
}

static void members_are_followed_where_both_trees_add_alike(void **state) {
  int64_t starts[MEMBERS + 1];
  for (int64_t leaves = 1; leaves <= 12; leaves++)
    for (starts[0] = 0; starts[0] < leaves; starts[0]++) assert_true(try_members(starts, 0, leaves));
}

static void equal_members_are_followed_at_some_numbers(void **state) {
  static const int follows[MEMBERS + 1] = {[1] = 1, [2] = 1, [3] = 1, [4] = 1, [7] = 1, [8] = 1, [15] = 1, [16] = 1};
  for (int64_t own = 1; own <= 4; own++)
    for (size_t members = 1; members <= MEMBERS; members++) {
      int64_t starts[MEMBERS + 1];
      for (size_t m = 0; m <= members; m++) starts[m] = (int64_t)m * own;
      int is_node = own != 3 || members == 1;
      assert_int_equal(ad_nodes_follow_members(starts, members, starts[members]), follows[members] && is_node);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_range_consists_of_the_largest_nodes_inside_it),
      cmocka_unit_test(a_range_of_many_leaves_has_no_more_nodes_than_the_limit),
      cmocka_unit_test(siblings_are_the_children_of_one_node),
      cmocka_unit_test(the_lower_child_has_the_largest_power_of_two_below),
      cmocka_unit_test(the_nodes_of_neighbouring_ranges_add_up_to_those_of_their_union),
      cmocka_unit_test(members_are_followed_where_both_trees_add_alike),
      cmocka_unit_test(equal_members_are_followed_at_some_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
