/* Names what may have made addends wrong before they were summed. A wrong addend leaves no trace of the call that made
 * it wrong, so several possible causes are named: transitions, and always the formulas between them, too. Two facts
 * exclude some of these causes: a wrong loss can only come from the forward pass, and a common factor only from a group
 * of that size. */
#include "check/computed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

/* What is known about the wrong addends, and the transitions to search. */
typedef struct search {
  const ad_places *places;
  int forward;    /* 1: the loss is wrong, too, so the mistake is in the forward pass */
  double factor;  /* the factor by which all wrong gradients differ from the reference; NaN: there is none */
  int weighed;    /* 1: each microbatch is right except for a factor, so only the count can be the cause */
  const char *by; /* the last wrong parameter in the order of the forward pass: backward reaches it first */
} search;

static int is_wrong(const ad_check_param *param) {
  return param->accounted == AD_ADDENDS_ARE_WRONG || param->accounted == AD_ADDENDS_ARE_WEIGHED ||
         param->accounted == AD_NO_ACCOUNT;
}

/* ---- narrowing down which computation may be wrong ---- */

/* Returns the factor by which all wrong gradients differ from the reference; NaN if there is no such factor. */
static double common_factor(const ad_check_result *result) {
  double factor = NAN;
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (!is_wrong(param)) continue;
    if (!param->proportional || (!isnan(factor) && fabs(param->ratio - factor) > 1e-6 * factor)) return NAN;
    factor = param->ratio;
  }
  return factor;
}

static search search_for(const ad_places *places, const ad_check_result *result) {
  search s = {places, !(result->loss_err <= result->loss_bound), common_factor(result), 0, ""};
  for (size_t i = 0; i < result->param_count; i++)
    if (is_wrong(&result->params[i])) s.by = result->params[i].name;
  return s;
}

int ad_place_is_count(const ad_place *place) {
  return place->phase == AD_PLACE_STEP && !strncmp(place->what, "count", 5);
}

/* Returns 1 if the transition is part of a bridge; other transitions on a tape have a call site, FILE.c:LINE. */
static int is_of_bridge(const ad_place *place) { return place->phase != AD_PLACE_STEP && !strstr(place->what, ".c:"); }

/* Returns 1 if a mistake over this transition's group could cause the factor: the group has `factor` or 1/`factor`
 * ranks. */
static int is_of_size(const ad_place *place, double factor) {
  double ranks = (double)place->ranks;
  return isnan(factor) || fabs(factor - ranks) <= 1e-6 * ranks || fabs(factor * ranks - 1) <= 1e-6;
}

static ad_axes axes_of(const ad_place *place) { return place->axes & place->large; }

static int is_candidate(const search *s, const ad_place *place, double factor) {
  int in_phase =
      s->forward ? place->phase == AD_PLACE_FORWARD || ad_place_is_count(place) : place->phase == AD_PLACE_BACKWARD;
  if (s->weighed && !ad_place_is_count(place)) return 0;
  return in_phase && place->ranks > 1 && place->move != AD_MOVE_CONVERT && place->move != AD_MOVE_DECLARE &&
         (ad_place_is_count(place) || is_of_size(place, factor));
}

/* ---- writing the causes ---- */

/* Returns 1 if one cause names both transitions: they belong to one bridge, or to the count, or are over the same
 * axes. */
static int is_like(const ad_place *a, const ad_place *b) {
  if (is_of_bridge(a) || is_of_bridge(b)) return is_of_bridge(a) && is_of_bridge(b) && !strcmp(a->what, b->what);
  return axes_of(a) == axes_of(b) && ad_place_is_count(a) == ad_place_is_count(b);
}

static int is_first_of_its_like(const search *s, size_t index, double factor) {
  for (size_t i = 0; i < index; i++)
    if (is_candidate(s, &s->places->list[i], factor) && is_like(&s->places->list[i], &s->places->list[index])) return 0;
  return 1;
}

/* Prints the first transition and the number of further ones that the same cause names: "reduce_scatter at
 * train/nn/mlp.c:30 or 2 more". */
static void print_like(const search *s, size_t first, double factor, ad_text *text) {
  const ad_place *place = &s->places->list[first];
  int more = 0;
  ad_text_add(text, "%s at %s", ad_move_name(place->move), place->what);
  for (size_t i = first + 1; i < s->places->count; i++)
    more += is_candidate(s, &s->places->list[i], factor) && is_like(place, &s->places->list[i]);
  if (more) ad_text_add(text, " or %d more", more);
}

static ad_cause_kind kind_of(double factor) {
  return isnan(factor) ? AD_CAUSE_UNKNOWN : factor < 1 ? AD_CAUSE_AVERAGED : AD_CAUSE_DOUBLED;
}

/* Adds the count as a cause. If gradients are too large by a factor, the count, by which they are divided, is too small
 * by the same factor. */
static void add_count(const ad_place *place, double factor, ad_causes *causes) {
  char names[80];
  const char *did = isnan(factor) ? "left out, averaged, made twice, or made over other ranks"
                    : factor > 1  ? "left out, averaged, or made over fewer ranks"
                                  : "made twice, or over more ranks";
  ad_causes_add(causes, kind_of(1 / factor), axes_of(place), factor,
                "the count that losses are divided by is wrong: its sum over %s was %s",
                ad_axes_print(axes_of(place), names, sizeof names), did);
}

static void add_like(const search *s, size_t first, double factor, ad_causes *causes) {
  const ad_place *place = &s->places->list[first];
  char names[80], where[160];
  ad_text text = ad_text_on(where, sizeof where);
  const char *did = isnan(factor) ? "left out, averaged, summed twice, or done over other ranks"
                    : factor < 1  ? "averaged, or done over fewer ranks"
                                  : "summed twice, or over more ranks";
  ad_axes_print(axes_of(place), names, sizeof names);
  print_like(s, first, factor, &text);
  if (ad_place_is_count(place))
    add_count(place, factor, causes);
  else if (is_of_bridge(place))
    snprintf(ad_causes_add(causes, kind_of(factor), axes_of(place), factor,
                           "%s the bridge `%s`: the transition over %s was %s",
                           s->forward ? "in the forward pass, over" : "on the way back over", place->what, names, did)
                 ->place,
             sizeof causes->list[0].place, "%.63s", place->what);
  else
    ad_causes_add(causes, kind_of(factor), axes_of(place), factor, "in the %s pass: a transition over %s was %s (%s)",
                  s->forward ? "forward" : "backward", names, did, where);
}

static size_t add_candidates(const search *s, double factor, ad_causes *causes) {
  size_t added = 0;
  for (size_t i = 0; i < s->places->count; i++) {
    if (!is_candidate(s, &s->places->list[i], factor) || !is_first_of_its_like(s, i, factor)) continue;
    add_like(s, i, factor, causes);
    added++;
  }
  return added;
}

/* Names as causes the transitions whose group of ranks has the size of the factor by which the gradients are wrong. If
 * there are none, names all transitions, since any of them, made over one more axis, can cause that factor. */
static void find_causes(const search *s, ad_causes *causes) {
  if (isnan(s->factor) || !add_candidates(s, s->factor, causes)) add_candidates(s, NAN, causes);
  ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, s->factor,
                s->forward
                    ? "a formula or the data of the forward pass is wrong, since the loss is wrong as well"
                    : "a formula of the backward pass is wrong, in the gradient that reaches `%s`; the loss is right",
                s->by)
      ->no_axis = AD_NO_AXIS_FORMULA;
}

/* If the account shows wrong addends, removes causes that were found from the sum alone. Two causes stay, because they
 * may still be true: a factor of the full gradient, since wrong addends may have a factor, too; and replicas that are
 * parts of one sum, since an earlier sum may be missing. Without an account all causes stay. */
void ad_computed_explain(const ad_places *places, ad_check_result *result) {
  search s = search_for(places, result);
  for (size_t i = 0; i < result->param_count; i++) {
    ad_check_param *param = &result->params[i];
    if (!is_wrong(param)) continue;
    ad_cause_kind reported = param->causes.list[0].kind;
    int stays = (param->proportional && reported != AD_CAUSE_UNKNOWN) || reported == AD_CAUSE_PARTIAL;
    if (param->accounted == AD_ADDENDS_ARE_WRONG && !stays) param->causes.count = 0;
    s.weighed = param->accounted == AD_ADDENDS_ARE_WEIGHED;
    find_causes(&s, &param->causes);
  }
}
