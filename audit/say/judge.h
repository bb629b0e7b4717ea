/* Judges one parameter of a dump. Several threads may judge parameters in parallel; they share only `known`. */
#ifndef DIFF_JUDGE_H
#define DIFF_JUDGE_H
#include "say/declared.h"
#include "say/promised.h"
#include "say/document.h"
#include "solve/known.h"
#include "say/norm.h"

/* What judging needs; the same for all parameters. */
typedef struct ad_judge {
  const ad_dump *dump;
  const ad_dump *reference; /* NULL: there is none */
  ad_known *known;          /* counts that explained earlier parameters */
  int allow_identical;      /* 1: bit-identical addends are expected (--allow-identical) */
} ad_judge;

/* The result of judging one parameter. */
typedef struct ad_finding {
  ad_answer answer;
  json_t *document;
  json_t *messages;  /* NULL: there are no messages */
  json_t *declared;  /* entries on what is declared of the parameter; NULL: nothing is */
  json_t *identical; /* the field `who` of ad_identical; NULL: the addends were not compared with each other */
  /* Bit sets of axes, which are for messages that parameters with the same axes share. `retyped`: type I was assumed,
   * but R is right. */
  uint32_t untried, unlike, unequal, retyped;
  int unfitted; /* 1: the sum is wrong, and its counts were not fitted */
  ad_norm_term norm;
  ad_facts facts;         /* what the declarations of the parameter are judged by */
  ad_formed_found formed; /* what the sum's bits say of its dtype */
  size_t read;            /* bytes of the parameter's tensors */
} ad_finding;

ad_status ad_judge_param(const ad_judge *judge, size_t index, ad_finding *out) AD_CHECKED;
void ad_finding_clear(ad_finding *finding);

#endif
