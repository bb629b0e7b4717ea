/* Tests the check for bits: what it says of each thing that can differ, that right runs match on worlds of 1 to 4 ranks,
 * and that one unit in the last place of one leaf's gradient on one rank is seen and named. */
#include "says.h"
#include "world.h"
#include "ranks.h"

#include <math.h>

#include "check/bits.h"
#include "check/document.h"
#include "check/table.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/paper.h"
#include "reduce/reducer.h"

/* ---- what is said of notes that differ ---- */

enum { ROOM = 400, LEAVES = 8, NUMEL = 6 };

/* Two notes of the same run on a recipe's program: one of two ranks with four leaves each, one of one rank. */
typedef struct pair {
  ad_recipe *recipe;
  ad_paper paper;
  ad_bits_notes *run, *reference;
  ad_bits_finding found;
} pair;

static void note(ad_bits_notes *notes, int64_t rank, ad_bits_note of) {
  if (!of.numel) of.numel = NUMEL;
  must(ad_bits_add(notes, rank, &of));
}

/* Any hash will do that is another for each thing. */
static uint64_t hash_of(int64_t param, ad_node node) {
  return (uint64_t)(param * 10007 + node.first * 101 + node.count);
}

static void note_sum(ad_bits_notes *notes, int64_t rank, int64_t param, ad_node node, ad_axes over) {
  note(notes, rank,
       (ad_bits_note){.kind = AD_BITS_SUM, .of = param, .node = node, .over = over, .hash = hash_of(param, node)});
}

/* Leaves [first, first + 4), their sums, and what follows. */
static void note_leaves(ad_bits_notes *notes, int64_t rank, int64_t first) {
  for (int64_t leaf = first; leaf < first + 4; leaf++)
    note(notes, rank, (ad_bits_note){.kind = AD_BITS_RAN, .node = {leaf, 1}});
  for (int64_t param = 0; param < 2; param++) {
    for (int64_t leaf = first; leaf < first + 4; leaf++) note_sum(notes, rank, param, (ad_node){leaf, 1}, 0);
    note_sum(notes, rank, param, (ad_node){first, 2}, 0);
    note_sum(notes, rank, param, (ad_node){first + 2, 2}, 0);
    note_sum(notes, rank, param, (ad_node){first, 4}, 0);
  }
}

static void note_rest(ad_bits_notes *notes, int64_t rank) {
  for (int64_t param = 0; param < 2; param++) note_sum(notes, rank, param, (ad_node){0, LEAVES}, AD_AXES(AD_DP_SHARD));
  note(notes, rank, (ad_bits_note){.kind = AD_BITS_LOSS, .numel = 1, .hash = 31});
  note(notes, rank, (ad_bits_note){.kind = AD_BITS_SQUARES, .of = 1, .numel = 1, .hash = 34});
  note(notes, rank, (ad_bits_note){.kind = AD_BITS_NORM, .numel = 1, .hash = 32});
  note(notes, rank, (ad_bits_note){.kind = AD_BITS_CLIP, .numel = 1, .hash = 33});
  for (int part = AD_PART_VALUE; part <= AD_PART_STATE; part++)
    note(notes, rank, (ad_bits_note){.kind = AD_BITS_VALUE, .of = 1, .part = part, .hash = 40 + (uint64_t)part});
}

static pair *open_pair(void) {
  pair *p = calloc(1, sizeof *p);
  assert_non_null(p);
  p->recipe = small_recipe("dp_shard=2", "", ", leaves: 8");
  must(ad_paper_open(p->recipe, &p->paper));
  must(ad_bits_notes_create(2, ROOM, &p->run));
  must(ad_bits_notes_create(1, ROOM, &p->reference));
  p->found = (ad_bits_finding){.steps = 1, .leaves = LEAVES, .ranks = 1};
  for (int64_t rank = 0; rank < 2; rank++) {
    ad_bits_begin(p->run, rank, 0);
    note_leaves(p->run, rank, rank * 4);
    note_rest(p->run, rank);
  }
  ad_bits_begin(p->reference, 0, 0);
  note_leaves(p->reference, 0, 0);
  note_leaves(p->reference, 0, 4);
  note_rest(p->reference, 0);
  return p;
}

static const ad_bits_finding *compared(pair *p) {
  must(ad_bits_compare(p->run, p->reference, p->paper.program, &p->found));
  return &p->found;
}

static void close_pair(pair *p) {
  ad_bits_notes_destroy(p->run);
  ad_bits_notes_destroy(p->reference);
  ad_paper_close(&p->paper);
  ad_recipe_destroy(p->recipe);
  free(p);
}

static ad_bits_note *notes_at(ad_bits_notes *notes, int64_t rank) {
  return (ad_bits_note *)(void *)&notes->rank[notes->ranks] + (size_t)rank * notes->room;
}

/* The one note of the rank that is of this; `part` is ignored except in values. */
static ad_bits_note *find_note(pair *p, int64_t rank, ad_bits_kind kind, int64_t of, ad_node node, int64_t part) {
  ad_bits_note *notes = notes_at(p->run, rank), *found = NULL;
  for (size_t i = 0; i < p->run->rank[rank].count; i++) {
    const ad_bits_note *at = &notes[i];
    if (at->kind != kind || at->of != of || at->node.first != node.first || at->node.count != node.count) continue;
    if (kind == AD_BITS_VALUE && at->part != part) continue;
    assert_null(found);
    found = &notes[i];
  }
  assert_non_null(found);
  return found;
}

static void drop_note(pair *p, int64_t rank, ad_bits_note *at) {
  *at = notes_at(p->run, rank)[--p->run->rank[rank].count];
}

static void notes_that_agree_are_equal(void **state) {
  pair *p = open_pair();
  assert_true(compared(p)->equal);
  assert_null(p->found.what);
  assert_string_equal(p->found.difference, "");
  assert_int_equal(p->found.compared, p->run->rank[0].count + p->run->rank[1].count);
  close_pair(p);
}

static void what_differs_is_named_with_its_rank(void **state) {
  static const struct {
    ad_bits_kind kind;
    int64_t of, rank;
    ad_node node;
    int64_t part;
    const char *what;
    const char *facts[5];
  } cases[] = {
      {AD_BITS_SUM, 1, 1, {5, 1}, 0, "leaf", {"leaf 5", "rank 1"}},
      {AD_BITS_SUM, 1, 1, {4, 4}, 0, "node", {"[4, 8)", "rank 1"}},
      {AD_BITS_SUM, 0, 0, {0, 8}, 0, "node", {"[0, 8)", "rank 0", "dp_shard"}},
      {AD_BITS_LOSS, 0, 1, {0, 0}, 0, "loss", {"`cross_entropy`", "rank 1"}},
      {AD_BITS_SQUARES, 1, 0, {0, 0}, 0, "norm", {"rank 0"}},
      {AD_BITS_NORM, 0, 1, {0, 0}, 0, "norm", {"rank 1"}},
      {AD_BITS_CLIP, 0, 0, {0, 0}, 0, "clip", {"rank 0"}},
      {AD_BITS_VALUE, 1, 1, {0, 0}, AD_PART_MASTER, "update", {"rank 1"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pair *p = open_pair();
    find_note(p, cases[i].rank, cases[i].kind, cases[i].of, cases[i].node, cases[i].part)->hash ^= 1;
    const ad_bits_finding *found = compared(p);
    assert_false(found->equal);
    assert_string_equal(found->what, cases[i].what);
    assert_int_equal(found->rank, cases[i].rank);
    assert_says_in(__func__, found->difference, cases[i].facts);
    close_pair(p);
  }
}

/* Whatever else differs, what comes first is named. */
static void the_smallest_sum_is_named_first(void **state) {
  pair *p = open_pair();
  find_note(p, 1, AD_BITS_VALUE, 1, (ad_node){0, 0}, AD_PART_VALUE)->hash ^= 1;
  find_note(p, 1, AD_BITS_SUM, 0, (ad_node){4, 4}, 0)->hash ^= 1;
  find_note(p, 1, AD_BITS_SUM, 1, (ad_node){6, 2}, 0)->hash ^= 1;
  assert_string_equal(compared(p)->what, "node");
  assert_int_equal(p->found.first.node.first, 6);
  find_note(p, 0, AD_BITS_SUM, 1, (ad_node){3, 1}, 0)->hash ^= 1;
  assert_string_equal(compared(p)->what, "leaf");
  assert_int_equal(p->found.first.node.first, 3);
  close_pair(p);
}

static void shards_are_compared_together(void **state) {
  pair *p = open_pair();
  ad_bits_note *first = find_note(p, 0, AD_BITS_SUM, 0, (ad_node){0, 8}, 0);
  ad_bits_note *second = find_note(p, 1, AD_BITS_SUM, 0, (ad_node){0, 8}, 0);
  uint64_t whole = first->hash;
  first->numel = 4;
  first->hash = whole - 1234;
  second->numel = NUMEL - 4;
  second->hash = 1234;
  assert_true(compared(p)->equal);
  second->hash++;
  assert_false(compared(p)->equal);
  assert_int_equal(p->found.rank, -1);
  assert_text_says(p->found.difference, "[0, 8)", "dp_shard");
  /* where the reference has notes of shards, the rank is named */
  ad_bits_note shard = {.kind = AD_BITS_SUM, .node = {0, 8}, .of_shard = 1, .numel = 4, .hash = whole - 1234};
  first->shard = 1;
  second->shard = 2;
  note(p->reference, 0, shard);
  shard.of_shard = 2;
  shard.numel = NUMEL - 4;
  shard.hash = 1234;
  note(p->reference, 0, shard);
  assert_int_equal(compared(p)->rank, 1);
  assert_text_says(p->found.difference, "[0, 8)", "rank 1", "dp_shard");
  second->hash--;
  assert_true(compared(p)->equal);
  second->numel--; /* a row is on no rank */
  assert_false(compared(p)->equal);
  close_pair(p);
}

/* A collective that scatters may leave a leaf, or a node that a rank also has in full, as shards on other ranks. */
static void shards_are_compared_apart_from_full_values(void **state) {
  static const ad_node nodes[] = {{2, 1}, {0, 4}};
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
    pair *p = open_pair();
    uint64_t whole = hash_of(0, nodes[i]);
    ad_bits_note shard = {.kind = AD_BITS_SUM, .node = nodes[i], .over = AD_AXES(AD_DP_SHARD)};
    shard.numel = 2;
    shard.hash = 77;
    note(p->run, 0, shard);
    shard.numel = NUMEL - 2;
    shard.hash = whole - 77;
    note(p->run, 1, shard);
    assert_true(compared(p)->equal);
    ad_bits_note *second = &notes_at(p->run, 1)[p->run->rank[1].count - 1];
    second->hash++;
    assert_false(compared(p)->equal);
    assert_int_equal(p->found.rank, -1);
    assert_int_equal(p->found.first.over, AD_AXES(AD_DP_SHARD));
    second->hash--;
    second->numel++; /* an element is on two ranks */
    assert_false(compared(p)->equal);
    close_pair(p);
  }
}

static void a_leaf_on_two_ranks_is_named(void **state) {
  pair *p = open_pair();
  note(p->run, 1, (ad_bits_note){.kind = AD_BITS_RAN, .node = {2, 1}});
  assert_string_equal(compared(p)->what, "run");
  assert_text_says(p->found.difference, "leaf 2", "2", "0, 1");
  drop_note(p, 1, &notes_at(p->run, 1)[p->run->rank[1].count - 1]);
  note_sum(p->run, 1, 1, (ad_node){2, 1}, 0);
  assert_string_equal(compared(p)->what, "leaf");
  assert_text_says(p->found.difference, "leaf 2", "2", "0, 1");
  close_pair(p);
}

/* A rank with one leaf has the same sum again after a collective over itself alone. */
static void a_collective_over_one_rank_repeats_no_leaf(void **state) {
  pair *p = open_pair();
  note_sum(p->run, 0, 1, (ad_node){2, 1}, AD_AXES(AD_DP_SHARD));
  assert_true(compared(p)->equal);
  close_pair(p);
}

static void a_leafs_own_gradient_is_named_before_what_a_collective_left(void **state) {
  pair *p = open_pair();
  find_note(p, 1, AD_BITS_SUM, 1, (ad_node){5, 1}, 0)->hash ^= 1;
  note_sum(p->run, 0, 1, (ad_node){5, 1}, AD_AXES(AD_DP_SHARD));
  notes_at(p->run, 0)[p->run->rank[0].count - 1].hash ^= 1;
  assert_false(compared(p)->equal);
  assert_int_equal(p->found.rank, 1);
  assert_int_equal(p->found.first.over, 0);
  find_note(p, 1, AD_BITS_SUM, 1, (ad_node){5, 1}, 0)->hash ^= 1;
  assert_int_equal(compared(p)->rank, 0);
  assert_text_says(p->found.difference, "leaf 5", "rank 0", "dp_shard");
  close_pair(p);
}

static void ranks_at_other_places_are_compared_apart(void **state) {
  pair *p = open_pair();
  p->run->rank[1].place = 1;
  assert_false(compared(p)->equal);
  close_pair(p);
}

static void a_leaf_that_ran_twice_on_one_rank_is_named(void **state) {
  pair *p = open_pair();
  note(p->run, 0, (ad_bits_note){.kind = AD_BITS_RAN, .node = {2, 1}});
  assert_string_equal(compared(p)->what, "run");
  assert_text_says(p->found.difference, "leaf 2", "rank 0");
  close_pair(p);
}

static void a_leaf_on_no_rank_is_named(void **state) {
  pair *p = open_pair();
  drop_note(p, 1, find_note(p, 1, AD_BITS_SUM, 1, (ad_node){7, 1}, 0));
  assert_string_equal(compared(p)->what, "leaf");
  assert_text_says(p->found.difference, "leaf 7");
  drop_note(p, 1, find_note(p, 1, AD_BITS_RAN, 0, (ad_node){6, 1}, 0));
  assert_string_equal(compared(p)->what, "run");
  assert_text_says(p->found.difference, "leaf 6");
  close_pair(p);
}

static void a_sum_of_other_leaves_than_a_nodes_is_named(void **state) {
  pair *p = open_pair();
  find_note(p, 0, AD_BITS_SUM, 1, (ad_node){0, 4}, 0)->node.count = 3;
  assert_false(compared(p)->equal);
  assert_int_equal(p->found.rank, 0);
  assert_text_says(p->found.difference, "rank 0", "[0, 3)");
  close_pair(p);
}

static void the_whole_sum_must_be_seen(void **state) {
  pair *p = open_pair();
  for (int64_t rank = 0; rank < 2; rank++) drop_note(p, rank, find_note(p, rank, AD_BITS_SUM, 1, (ad_node){0, 8}, 0));
  assert_string_equal(compared(p)->what, "node");
  assert_int_equal(p->found.first.node.count, LEAVES);
  close_pair(p);
}

static void notes_without_room_are_refused(void **state) {
  ad_bits_notes *notes;
  ad_bits_note any = {.kind = AD_BITS_LOSS};
  must(ad_bits_notes_create(2, 3, &notes));
  for (int i = 0; i < 3; i++) must(ad_bits_add(notes, 1, &any));
  assert_int_equal(ad_bits_add(notes, 1, &any), AD_MEMORY);
  assert_says("rank 1", "3");
  must(ad_bits_add(notes, 0, &any));
  ad_bits_notes_destroy(notes);
}

/* ---- runs ---- */

static const struct {
  const char *mesh, *train;
  int64_t ranks;
} worlds[] = {
    {"dp_shard=1", ", leaves: 7", 1},
    {"dp_replicate=2", ", leaves: 8", 1},
    {"dp_shard=3", ", leaves: 12, microbatches: 2", 1},
    {"dp_replicate=2 dp_shard=2", ", leaves: 8}\nshard: {zero: 1", 1},
    {"dp_shard=5", ", leaves: 7}\nshard: {zero: 3", 1},
    {"dp_replicate=3 dp_shard=2", ", leaves: 13, microbatches: 4, sync: [shard, all, shard, all]}\nshard: {zero: 2", 1},
    {"dp_replicate=3 dp_shard=2", ", leaves: 13, microbatches: 3, sync: [none, shard, all]}\nshard: {zero: 3", 1},
    {"dp_shard=2 tp=2", ", leaves: 8}\nshard: {zero: 1", 2},
    {"dp_replicate=2 cp=2", ", leaves: 8, microbatches: 2", 2}};

static void right_runs_match_bit_for_bit(void **state) {
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
    ad_recipe *recipe = small_recipe(worlds[i].mesh, UNEQUAL, worlds[i].train);
    ad_bits *bits;
    must(ad_bits_create(recipe, 2, &bits));
    if (!bits->found.equal) fail_msg("%s: %s", worlds[i].mesh, bits->found.difference);
    assert_int_equal(bits->found.ranks, worlds[i].ranks);
    assert_true(bits->found.compared > 400);
    ad_bits_destroy(bits);
    ad_recipe_destroy(recipe);
  }
}

/* The recipe, and what is expected of a check on its ranks. */
typedef struct started {
  const ad_recipe *recipe;
  int64_t ranks; /* of the reference */
  size_t compared;
} started;

static int compare_here(ad_comm *comm, void *context) {
  const started *expected = context;
  ad_bits *bits;
  CHECK_OK(ad_bits_create_on(comm, expected->recipe, 2, &bits));
  CHECK(!bits == (ad_comm_rank(comm) != 0));
  if (bits)
    CHECK(bits->found.equal && bits->found.ranks == expected->ranks && bits->found.compared == expected->compared);
  ad_bits_destroy(bits);
  return 0;
}

/* Ranks that have started already compare as much as new ones; the first of them are the reference, too. */
static void ranks_that_have_started_are_compared_with_the_first(void **state) {
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
    ad_recipe *recipe = small_recipe(worlds[i].mesh, UNEQUAL, worlds[i].train);
    ad_bits *bits;
    int64_t ranks;
    must(ad_bits_create(recipe, 2, &bits));
    must(ad_recipe_world(recipe, &ranks));
    started expected = {recipe, worlds[i].ranks, bits->found.compared};
    run_ranks(ranks, compare_here, &expected);
    ad_bits_destroy(bits);
    ad_recipe_destroy(recipe);
  }
}

/* One unit in the last place of the last element of one leaf. */
static void nudge_leaf(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  ad_known_bug_scene *scene = context;
  if (of->reducer->leaves.leaf != 5 || scene->steps || scene->fired) return;
  const ad_reduced_param *param = &of->reducer->params[of->bucket->members.index[0]];
  float *values = (float *)of->bucket->sent.data + param->offset, *last = &values[param->numel - 1];
  *last = nextafterf(*last, INFINITY);
  scene->fired = 1;
}

static const ad_known_bug nudged = {.name = "nudged", .words = "an ulp", .at = {{AD_INJECT_LEAF, nudge_leaf}}};

/* Takes a step of the recipe with the bug, and compares it with the right reference of `bits`. */
static ad_bits_finding with_bug(const ad_bits *bits, const ad_known_bug *bug) {
  ad_bits_job job = {.recipe = bits->recipe, .steps = bits->found.steps, .bug = bug, .notes = bits->run};
  ad_launch_result launched = {.size = sizeof launched};
  ad_bits_finding found = bits->found;
  ad_paper paper;
  if (ad_bits_run(&job, &launched)) fail_msg("%s", launched.message);
  must(ad_paper_open(bits->recipe, &paper));
  must(ad_bits_compare(bits->run, bits->reference, paper.program, &found));
  ad_paper_close(&paper);
  return found;
}

/* Exchanges two elements of one leaf, which are not the same. */
static void swap_elements(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  ad_known_bug_scene *scene = context;
  const ad_reduced_param *param = &of->reducer->params[of->bucket->members.index[0]];
  float *values = (float *)of->bucket->sent.data + param->offset, kept = values[0];
  if (of->reducer->leaves.leaf != 0 || values[0] == values[1] || scene->fired) return;
  values[0] = values[1];
  values[1] = kept;
  scene->fired = 1;
}

static void elements_in_other_places_are_seen(void **state) {
  static const ad_known_bug swapped = {.name = "swapped", .words = "x", .at = {{AD_INJECT_LEAF, swap_elements}}};
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  ad_bits *bits;
  must(ad_bits_create(recipe, 1, &bits));
  ad_bits_finding found = with_bug(bits, &swapped);
  assert_false(found.equal);
  assert_string_equal(found.what, "leaf");
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
}

static void one_unit_in_the_last_place_of_a_leaf_is_seen(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=2 dp_shard=2", UNEQUAL, ", leaves: 8");
  ad_bits *bits;
  must(ad_bits_create(recipe, 1, &bits));
  ad_bits_finding found = with_bug(bits, &nudged);
  assert_false(found.equal);
  assert_string_equal(found.what, "leaf");
  assert_int_equal(found.first.node.first, 5);
  assert_int_equal(found.rank, 2); /* ranks have two leaves each */
  assert_text_says(found.difference, "leaf 5", "rank 2");
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
}

/* One unit in the last place of an expert's matrix in one leaf, on the rank at this position of tp. */
static void nudge_expert(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  ad_known_bug_scene *scene = context;
  if (of->reducer->leaves.leaf != 4 || scene->rank % 2 || scene->fired) return;
  for (size_t i = 0; i < of->bucket->members.count && !scene->fired; i++) {
    const ad_reduced_param *param = &of->reducer->params[of->bucket->members.index[i]];
    if (!strstr(param->name, "moe.gate")) continue;
    float *values = (float *)of->bucket->sent.data + param->offset;
    values[3] = nextafterf(values[3], INFINITY);
    scene->fired = 1;
  }
}

static ad_recipe *experts_recipe(const char *mesh, const char *train) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: experts\nmodel: {kind: moe, layers: 1, d_model: 16, heads: 2, experts: 5, top_k: 2, expert_hidden: 6,"
           " capacity: 0.9, balance_loss: 0.1, balance_rate: 0.1}\n"
           "data: {text: [/usr/share/common-licenses], seq: 8}\nmesh: \"%s\"\nviews: {sparse: \"ep=2 etp=1\"}\n"
           "train: {seed: 4, global_batch: 12, steps: 5, lr: 1e-2, clip: 0.5, leaves: 7%s}\n",
           mesh, train);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "experts.yaml", NULL, 0, &recipe));
  return recipe;
}

/* Experts, of which each rank of tp has some, and the balancing bias. */
static void experts_are_compared_like_other_parameters(void **state) {
  static const ad_known_bug bug = {.name = "nudged", .words = "an ulp", .at = {{AD_INJECT_LEAF, nudge_expert}}};
  static const char *const experts_worlds[][2] = {{"dp_shard=3 tp=2", "}\nshard: {zero: 3"},
                                                  {"dp_replicate=2 dp_shard=2 tp=2", ", microbatches: 2"},
                                                  {"dp_shard=2 cp=2", "}\nshard: {zero: 1"}};
  for (size_t i = 0; i < sizeof experts_worlds / sizeof *experts_worlds; i++) {
    ad_recipe *recipe = experts_recipe(experts_worlds[i][0], experts_worlds[i][1]);
    ad_bits *bits;
    must(ad_bits_create(recipe, 2, &bits));
    if (!bits->found.equal) fail_msg("%s: %s", experts_worlds[i][0], bits->found.difference);
    assert_int_equal(bits->found.ranks, 2);
    ad_bits_finding found = with_bug(bits, &bug);
    assert_string_equal(found.what, "leaf");
    assert_int_equal(found.first.node.first, 4);
    assert_string_equal(found.param, "blocks.0.moe.gate");
    ad_bits_destroy(bits);
    ad_recipe_destroy(recipe);
  }
}

/* One unit in the last place of a shard, after the reduce_scatter. */
static void nudge_shard(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  ad_known_bug_scene *scene = context;
  if (scene->rank != 3 || scene->fired || !of->bucket->key.scatters || of->bucket->steps.next != 1) return;
  float *value = of->bucket->sum.data;
  *value = nextafterf(*value, INFINITY);
  scene->fired = 1;
}

static void the_rank_of_a_wrong_shard_is_named(void **state) {
  static const ad_known_bug bug = {.name = "nudged", .words = "an ulp", .at = {{AD_INJECT_REDUCED, nudge_shard}}};
  ad_recipe *recipe = small_recipe("dp_replicate=2 dp_shard=2", UNEQUAL, ", leaves: 8}\nshard: {zero: 2");
  ad_bits *bits;
  must(ad_bits_create(recipe, 1, &bits));
  ad_bits_finding found = with_bug(bits, &bug);
  assert_string_equal(found.what, "node");
  assert_int_equal(found.rank, 3);
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
}

/* ---- known bugs ---- */

/* The known bugs of leaves alone, with what a run with so many leaves on a rank has. */
static ad_mutants *leaf_bugs(int64_t leaves_each) {
  size_t count = ad_known_list_of_leaves(NULL);
  ad_mutants *mutants = calloc(1, sizeof *mutants + count * sizeof *mutants->list);
  assert_non_null(mutants);
  mutants->count = ad_known_list_of_leaves(mutants->list);
  ad_needs facts = AD_NEED_TOKENS | (leaves_each >= 2 ? AD_NEED_TWO_LEAVES : 0);
  mutants->facts = facts | (leaves_each >= 4 ? AD_NEED_FOUR_LEAVES : 0);
  return mutants;
}

static ad_mutant *bug_called(ad_mutants *mutants, const char *name) {
  for (size_t i = 0; i < mutants->count; i++)
    if (!strcmp(mutants->list[i].name, name)) return &mutants->list[i];
  fail_msg("no bug is called %s", name);
  return NULL;
}

static void known_bugs_of_leaves_are_killed(void **state) {
  static const struct {
    const char *mesh, *train;
    int64_t leaves_each;
    int shards; /* 1: gradients are sharded beside the data-parallel axes */
  } cases[] = {{"dp_shard=1", ", leaves: 8", 8, 0},
               {"dp_replicate=2", ", leaves: 8", 4, 0},
               {"dp_shard=3", ", leaves: 12", 4, 0},
               {"dp_replicate=2 dp_shard=2", ", leaves: 8", 2, 0},
               {"dp_replicate=4", ", leaves: 4", 1, 0},
               {"dp_shard=2 tp=2", ", leaves: 8}\nshard: {zero: 1", 4, 1},
               {"dp_replicate=3 dp_shard=2", ", leaves: 25}\nshard: {zero: 0", 5, 0},
               {"dp_replicate=3 dp_shard=2", ", leaves: 25}\nshard: {zero: 1", 5, 1},
               {"dp_replicate=3 dp_shard=2",
                ", leaves: 25, microbatches: 4, sync: [shard, all, shard, all]}\nshard: {zero: 2", 5, 1},
               {"dp_replicate=3 dp_shard=2", ", leaves: 25}\nshard: {zero: 3", 5, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *recipe = small_recipe(cases[i].mesh, UNEQUAL, cases[i].train);
    ad_mutants *mutants = leaf_bugs(cases[i].leaves_each);
    ad_bits *bits;
    must(ad_bits_create(recipe, 2, &bits));
    must(ad_bits_try(bits, mutants));
    const struct {
      const char *name;
      ad_killed_by by;
    } expected[] = {
        {"leaf-into-running-sum", cases[i].leaves_each < 2 ? AD_KILLED_BY_NOT_APPLICABLE : AD_KILLED_BY_BITS},
        {"leaves-one-by-one", cases[i].leaves_each < 4 ? AD_KILLED_BY_NOT_APPLICABLE : AD_KILLED_BY_BITS},
        {"leaves-exchanged", cases[i].leaves_each < 4 ? AD_KILLED_BY_NOT_APPLICABLE : AD_KILLED_BY_BITS},
        {"leaf-twice", cases[i].leaves_each < 2 ? AD_KILLED_BY_NOT_APPLICABLE : AD_KILLED_BY_BITS},
        {"leaf-lost", AD_KILLED_BY_BITS},
        {"leaf-added-to-zeros", AD_KILLED_BY_NO_EFFECT}, /* products write no -0 */
        {"leaves-of-step-before", AD_KILLED_BY_TYPE},
        {"norm-by-shard", cases[i].shards ? AD_KILLED_BY_BITS : AD_KILLED_BY_NO_EFFECT}};
    assert_int_equal(mutants->count, sizeof expected / sizeof *expected);
    for (size_t k = 0; k < mutants->count; k++) {
      const ad_mutant *mutant = bug_called(mutants, expected[k].name);
      if (mutant->killed_by != expected[k].by)
        fail_msg("%s: %s: %s: %s", cases[i].mesh, mutant->name, ad_killed_by_name(mutant->killed_by), mutant->message);
    }
    ad_bits_destroy(bits);
    ad_recipe_destroy(recipe);
    free(mutants);
  }
}

static void what_killed_a_bug_is_said(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  ad_mutants *mutants = leaf_bugs(4);
  ad_bits *bits;
  must(ad_bits_create(recipe, 2, &bits));
  must(ad_bits_try(bits, mutants));
  assert_text_says(bug_called(mutants, "leaf-into-running-sum")->message, "leaf 1", "rank 0");
  assert_text_says(bug_called(mutants, "leaves-one-by-one")->message, "[2, 4)", "rank 0");
  assert_text_says(bug_called(mutants, "leaf-twice")->message, "leaf 0", "2", "rank 0");
  assert_non_null(strstr(bug_called(mutants, "leaves-of-step-before")->message, "each leaf must be in the sum once"));
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
  free(mutants);
}

/* Where bits differ without any bug, a bug's bits would show nothing. */
static void bugs_are_not_tried_where_bits_differ_anyway(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  ad_mutants *mutants = leaf_bugs(4);
  ad_bits *bits;
  must(ad_bits_create(recipe, 1, &bits));
  bits->found.equal = 0;
  must(ad_bits_try(bits, mutants));
  for (size_t i = 0; i < mutants->count; i++) assert_int_equal(mutants->list[i].killed_by, AD_KILLED_BY_UNTRIED);
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
  free(mutants);
}

/* A bug that no step reaches, and one that changes nothing without a reason for it, are not killed. */
static void a_bug_that_changes_nothing_survives(void **state) {
  static const ad_known_bug idle = {.name = "idle", .words = "nothing", .of_bits = 1};
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  ad_mutants *mutants = leaf_bugs(4);
  ad_bits *bits;
  mutants->count = 1;
  mutants->list[0].known = &idle;
  must(ad_bits_create(recipe, 1, &bits));
  must(ad_bits_try(bits, mutants));
  assert_int_equal(mutants->list[0].killed_by, AD_KILLED_BY_NONE);
  assert_true(mutants->list[0].message[0]);
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
  free(mutants);
}

/* Each replica has one leaf of 14 in each round, which goes to its second rank: in the step of rank 0 no loss is divided,
 * so there types would refuse no wrong count. */
static void wrong_records_are_refused_where_the_first_rank_has_no_leaf(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=3 dp_shard=2", UNEQUAL,
                                   ", leaves: 14, microbatches: 4, sync: [shard, all, shard, all]}\nshard: {zero: 2");
  ad_mutants *mutants;
  size_t of_counts = 0;
  must(ad_mutants_create(recipe, 0, 1, &mutants));
  for (size_t i = 0; i < mutants->derived; i++) {
    const ad_mutant *mutant = &mutants->list[i];
    if (!mutant->mutation.in_record) continue;
    of_counts += !strncmp(mutant->mutation.place.what, "count", 5);
    if (mutant->killed_by == AD_KILLED_BY_NONE) fail_msg("%s: %s", mutant->name, mutant->message);
  }
  assert_true(of_counts >= 2);
  ad_mutants_destroy(mutants);
  ad_recipe_destroy(recipe);
}

static void mutate_tries_them_in_the_check(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=2", UNEQUAL, ", leaves: 8");
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  char *json;
  int holds;
  size_t i, by_bits = 0;
  must(ad_check(recipe, &options, &holds, &json));
  json_t *document = json_loads(json, 0, NULL), *mutant;
  json_array_foreach(json_object_get(document, "mutants"), i, mutant) {
    int is_by_bits = !strcmp(json_string_value(json_object_get(mutant, "killed_by")), "bits");
    by_bits += is_by_bits;
    if (is_by_bits) assert_string_equal(json_string_value(json_object_get(mutant, "dtype")), "recipe");
  }
  assert_int_equal(by_bits, 5);
  assert_true(holds);
  json_decref(document);
  free(json);
  ad_recipe_destroy(recipe);
}

/* ---- the document and the table ---- */

/* The check of a recipe, with this finding in place of that for bits. */
static json_t *document_with(const ad_recipe *recipe, const ad_bits_finding *bits, int *holds) {
  ad_check_options options = {.size = sizeof options, .steps = 1};
  ad_check_result *result;
  ad_launch_result launched = {.size = sizeof launched};
  must(ad_check_result_create(recipe, &result));
  ad_check_job job = {.recipe = recipe, .options = &options, .steps = 1, .result = result};
  must(ad_check_run(&job, &launched));
  ad_findings findings = {
      .recipe = recipe, .options = &options, .steps = 1, .result = result, .bits = bits, .world = 2, .backend = "shm"};
  *holds = ad_findings_hold(&findings);
  json_t *document = ad_findings_document(&findings);
  ad_check_result_destroy(result);
  assert_non_null(document);
  return document;
}

static void a_difference_in_bits_does_not_match(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  ad_bits *bits;
  must(ad_bits_create(recipe, 1, &bits));
  ad_bits_finding cases[] = {bits->found, with_bug(bits, &nudged)};
  for (int differs = 0; differs < 2; differs++) {
    char *text, *table;
    int holds;
    json_t *document = document_with(recipe, &cases[differs], &holds), *part = json_object_get(document, "bits");
    assert_int_equal(holds, !differs);
    assert_int_equal(json_is_true(json_object_get(part, "equal")), !differs);
    assert_int_equal(json_is_object(json_object_get(part, "first")), differs);
    text = json_dumps(document, 0);
    must(ad_check_table(text, AD_PLAIN_TEXT, &table));
    assert_int_equal(!strncmp(table, "DOES NOT MATCH", 14), differs);
    if (differs)
      assert_text_says(last_line(table), "leaf 5", "rank 1");
    else
      assert_text_says(last_line(table), "11");
    free(table);
    free(text);
    json_decref(document);
  }
  ad_bits_destroy(bits);
  ad_recipe_destroy(recipe);
}

/* As in a directional check. */
static void bits_that_were_not_compared_are_not_claimed(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=2", UNEQUAL, ", leaves: 8");
  int holds;
  json_t *document = document_with(recipe, NULL, &holds);
  char *text = json_dumps(document, 0), *table;
  must(ad_check_table(text, AD_PLAIN_TEXT, &table));
  assert_true(holds && json_is_null(json_object_get(document, "bits")));
  assert_null(strstr(table, "bit for bit"));
  free(table);
  free(text);
  json_decref(document);
  ad_recipe_destroy(recipe);
}

static void the_check_of_a_recipe_with_leaves_has_a_verdict_on_bits(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=2", UNEQUAL, ", leaves: 8");
  ad_check_options options = {.size = sizeof options};
  char *json;
  int holds;
  must(ad_check(recipe, &options, &holds, &json));
  assert_true(holds);
  json_t *document = json_loads(json, 0, NULL), *bits = json_object_get(document, "bits");
  assert_true(json_is_true(json_object_get(bits, "equal")));
  assert_int_equal(json_integer_value(json_object_get(bits, "steps")), 2);
  assert_int_equal(json_integer_value(json_object_get(bits, "leaves")), 8);
  assert_true(json_is_null(json_object_get(bits, "difference")) && json_is_null(json_object_get(bits, "first")));
  json_decref(document);
  free(json);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(notes_that_agree_are_equal),
                                     cmocka_unit_test(what_differs_is_named_with_its_rank),
                                     cmocka_unit_test(the_smallest_sum_is_named_first),
                                     cmocka_unit_test(shards_are_compared_together),
                                     cmocka_unit_test(shards_are_compared_apart_from_full_values),
                                     cmocka_unit_test(a_leaf_on_two_ranks_is_named),
                                     cmocka_unit_test(a_collective_over_one_rank_repeats_no_leaf),
                                     cmocka_unit_test(a_leafs_own_gradient_is_named_before_what_a_collective_left),
                                     cmocka_unit_test(ranks_at_other_places_are_compared_apart),
                                     cmocka_unit_test(elements_in_other_places_are_seen),
                                     cmocka_unit_test(a_leaf_that_ran_twice_on_one_rank_is_named),
                                     cmocka_unit_test(a_leaf_on_no_rank_is_named),
                                     cmocka_unit_test(a_sum_of_other_leaves_than_a_nodes_is_named),
                                     cmocka_unit_test(the_whole_sum_must_be_seen),
                                     cmocka_unit_test(notes_without_room_are_refused),
                                     cmocka_unit_test(right_runs_match_bit_for_bit),
                                     cmocka_unit_test(ranks_that_have_started_are_compared_with_the_first),
                                     cmocka_unit_test(one_unit_in_the_last_place_of_a_leaf_is_seen),
                                     cmocka_unit_test(experts_are_compared_like_other_parameters),
                                     cmocka_unit_test(the_rank_of_a_wrong_shard_is_named),
                                     cmocka_unit_test(known_bugs_of_leaves_are_killed),
                                     cmocka_unit_test(what_killed_a_bug_is_said),
                                     cmocka_unit_test(bugs_are_not_tried_where_bits_differ_anyway),
                                     cmocka_unit_test(a_bug_that_changes_nothing_survives),
                                     cmocka_unit_test(wrong_records_are_refused_where_the_first_rank_has_no_leaf),
                                     cmocka_unit_test(mutate_tries_them_in_the_check),
                                     cmocka_unit_test(a_difference_in_bits_does_not_match),
                                     cmocka_unit_test(bits_that_were_not_compared_are_not_claimed),
                                     cmocka_unit_test(the_check_of_a_recipe_with_leaves_has_a_verdict_on_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
