/* Tests how evenly experts are chosen: the balancing loss against its formula, and the tokens that a capacity limit
 * drops against sorting. */
#include "says.h"
#include "tensor/routing.h"
#include "two_ways.h"
#include "world.h"

/* Tokens of a batch [samples, seq] that choose experts by random scores. */
typedef struct chosen {
  world w;
  ad_tape *t;
  ad_array batch, scores;
  ad_tensor *tokens, *shares;
  ad_routing *routing;
} chosen;

enum { SAMPLES = 3, SEQ = 7, EXPERTS = 5, TOP_K = 2, TOKENS = SAMPLES * SEQ };

static chosen choose(void) {
  chosen c = {.w = world_open()};
  c.t = open_tape(&c.w, AD_F64);
  c.batch = random_array(&c.w, AD_F64, (ad_shape){3, {SAMPLES, SEQ, 2}}, 1, 0);
  c.scores = random_array(&c.w, AD_F64, (ad_shape){2, {TOKENS, EXPERTS}}, 3, 0);
  c.tokens = ad_constant(c.t, &c.batch);
  c.shares = ad_softmax(c.t, ad_input(c.t, &c.scores));
  ad_top_k(c.t, c.shares, TOP_K, NULL, &c.routing);
  must(ad_tape_status(c.t));
  return c;
}

static void end(chosen *c) {
  free(c->batch.data);
  free(c->scores.data);
  ad_tape_destroy(c->t);
  world_close(&c->w);
}

/* ---- the balancing loss ---- */

static void the_loss_is_that_of_the_formula(void **state) {
  chosen c = choose();
  ad_tensor *loss = ad_balance(c.t, c.shares, ad_choices(c.t, c.routing), TOP_K);
  must(ad_tape_status(c.t));
  double times[EXPERTS] = {0}, mean[EXPERTS] = {0}, wanted = 0;
  for (int i = 0; i < TOKENS * TOP_K; i++) times[c.routing->expert[i]]++;
  for (int i = 0; i < TOKENS * EXPERTS; i++)
    mean[i % EXPERTS] += element(ad_tensor_array(c.shares), (size_t)i) / TOKENS;
  for (int e = 0; e < EXPERTS; e++) wanted += EXPERTS * times[e] / (TOKENS * TOP_K) * mean[e];
  assert_true(fabs(ad_tensor_scalar(loss) - wanted) < 1e-14);
  assert_true(fabs(wanted - 1) > 1e-3);
  end(&c);
}

/* Choices are integers and carry no gradient: only the shares get one. */
static void its_gradient_is_that_of_the_shares(void **state) {
  chosen c = choose();
  ad_tensor *shares = ad_input(c.t, ad_tensor_array(c.shares));
  ad_tensor *choices = ad_choices(c.t, c.routing);
  must(ad_backward(c.t, ad_scale(c.t, ad_balance(c.t, shares, choices, TOP_K), 3)));
  for (int i = 0; i < TOKENS * EXPERTS; i++) {
    double times = element(ad_tensor_array(choices), (size_t)i % EXPERTS);
    assert_true(fabs(element(ad_grad(shares), (size_t)i) - 3.0 * EXPERTS * times / (TOKENS * TOP_K) / TOKENS) < 1e-15);
  }
  end(&c);
}

static void even_choices_cost_one(void **state) {
  static const double even[] = {1, 0, 0, /**/ 0, 1, 0, /**/ 0, 0, 1};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array = random_array(&w, AD_F64, (ad_shape){2, {3, 3}}, 1, 0);
  memcpy(array.data, even, sizeof even);
  ad_routing *routing;
  ad_tensor *shares = ad_input(t, &array);
  ad_top_k(t, shares, 1, NULL, &routing);
  assert_true(ad_tensor_scalar(ad_balance(t, shares, ad_choices(t, routing), 1)) == 1);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* ---- the capacity limit ---- */

/* Whether the choice is among the first `capacity` of its expert, in the order of tokens. */
static int is_early(const int32_t *expert, size_t choice, size_t capacity) {
  size_t earlier = 0;
  for (size_t i = 0; i < choice; i++) earlier += expert[i] == expert[choice];
  return earlier < capacity;
}

static void assert_kept(const chosen *c, size_t capacity) {
  int is_kept[TOKENS * TOP_K] = {0};
  size_t kept = 0, last = 0;
  for (size_t i = 0; i < c->routing->slots; i++) is_kept[c->routing->choice_of_slot[i]] = 1;
  for (size_t i = 0; i < TOKENS * TOP_K; i++) {
    assert_int_equal(is_kept[i], is_early(c->routing->expert, i, capacity));
    kept += (size_t)is_kept[i];
  }
  assert_int_equal(c->routing->slots, kept);
  assert_int_equal(ad_routing_dropped(c->routing), TOKENS * TOP_K - kept);
  for (size_t e = 0; e < EXPERTS; e++) { /* slots are sorted by expert */
    assert_true(c->routing->per_expert[e] <= capacity);
    for (size_t i = 0; i < c->routing->per_expert[e]; i++, last++)
      assert_int_equal(c->routing->expert[c->routing->choice_of_slot[last]], e);
  }
}

static void the_first_tokens_are_kept_whatever_the_capacity(void **state) {
  for (double capacity = 0.05; capacity < 2.5; capacity += 0.11) {
    chosen c = choose();
    ad_limit(c.t, c.routing, capacity, c.tokens, 0);
    must(ad_tape_status(c.t));
    assert_kept(&c, (size_t)ceil(capacity * TOKENS * TOP_K / EXPERTS));
    end(&c);
  }
}

static void choices_are_counted_before_the_limit(void **state) {
  chosen c = choose();
  ad_tensor *choices = ad_choices(c.t, c.routing);
  ad_limit(c.t, c.routing, 0.5, c.tokens, 0);
  double sum = 0;
  for (size_t e = 0; e < EXPERTS; e++) sum += element(ad_tensor_array(choices), e);
  assert_true(sum == TOKENS * TOP_K);
  assert_true(c.routing->slots < TOKENS * TOP_K);
  end(&c);
}

/* A dropped choice gives no row, and its gradient is exactly zero. */
static void what_is_dropped_has_no_gradient(void **state) {
  chosen c = choose();
  ad_array weights;
  ad_tensor *scores = ad_input(c.t, &c.scores);
  ad_tensor *best = ad_top_k(c.t, scores, TOP_K, NULL, &c.routing);
  ad_limit(c.t, c.routing, 0.4, c.tokens, 0);
  must(ad_backward(c.t, project(&c.w, c.t, ad_slot_weights(c.t, best, c.routing), 9, &weights)));
  size_t nonzero = 0;
  for (size_t i = 0; i < TOKENS * EXPERTS; i++) nonzero += element(ad_grad(scores), i) != 0;
  assert_int_equal(nonzero, c.routing->slots);
  free(weights.data);
  end(&c);
}

static void a_limit_that_says_nothing_is_refused(void **state) {
  chosen c = choose();
  ad_limit(c.t, c.routing, 0, c.tokens, 0);
  assert_int_equal(ad_tape_status(c.t), AD_INVALID);
  assert_says("0");
  ad_tape_reset(c.t);
  ad_array few = random_array(&c.w, AD_F64, (ad_shape){2, {1, 2}}, 5, 0);
  ad_top_k(c.t, ad_softmax(c.t, ad_constant(c.t, &c.scores)), TOP_K, NULL, &c.routing);
  ad_limit(c.t, c.routing, 1, ad_constant(c.t, &few), 0);
  assert_int_equal(ad_tape_status(c.t), AD_INVALID);
  assert_says("21", "row 0", "2");
  free(few.data);
  end(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_loss_is_that_of_the_formula),
      cmocka_unit_test(its_gradient_is_that_of_the_shares),
      cmocka_unit_test(even_choices_cost_one),
      cmocka_unit_test(the_first_tokens_are_kept_whatever_the_capacity),
      cmocka_unit_test(choices_are_counted_before_the_limit),
      cmocka_unit_test(what_is_dropped_has_no_gradient),
      cmocka_unit_test(a_limit_that_says_nothing_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
