/* The letters of a rule such as "bsk,kn->bsn": which letters each operand and the result have. */
#ifndef LAYOUT_RULE_H
#define LAYOUT_RULE_H
#include <stddef.h>
#include "addend/layout.h"

typedef struct ad_letters {
  const char *data; /* borrowed from the rule */
  int count;
} ad_letters;

/* Returns AD_INVALID unless the rule is valid for `count` operands. */
AD_CHECKED ad_status ad_rule_check(const ad_rule *rule, size_t count);
/* Return the letters of an operand, or of the result, of a rule for which ad_rule_check returned AD_OK. */
ad_letters ad_rule_operand(const ad_rule *rule, size_t operand);
ad_letters ad_rule_result(const ad_rule *rule);
int ad_letters_find(ad_letters letters, char letter); /* the index of the letter; -1 if it is not among the letters */

#endif
