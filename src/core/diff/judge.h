/* One parameter of a dump, judged. What it shares with others, which may be judged at the same time, is `known` alone.
 */
#ifndef DIFF_JUDGE_H
#define DIFF_JUDGE_H
#include "diff/document.h"
#include "diff/known.h"
#include "diff/norm.h"

typedef struct ad_judge {
  const ad_dump *dump;
  const ad_dump *reference; /* NULL: none */
  ad_known *known;          /* of those so far */
  int allow_identical;
} ad_judge;

/* What was found of a parameter. */
typedef struct ad_finding {
  ad_answer answer;
  json_t *document;
  json_t *messages;                  /* NULL: none */
  json_t *alike;                     /* as of ad_alike; NULL: its addends were not compared */
  uint32_t untried, unlike, unequal; /* axes that are told once for all parameters of which it is true */
  int unfitted;                      /* how often its addends were counted was not looked for */
  ad_norm_term norm;
  size_t read; /* bytes of its tensors */
} ad_finding;

ad_status ad_judge_param(const ad_judge *judge, size_t index, ad_finding *out) AD_CHECKED;
void ad_finding_clear(ad_finding *finding);

#endif
