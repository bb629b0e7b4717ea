/* The letters of a rule's dimensions ("bsk,kn->bsn"): which operand has which letters. */
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
/* The letters of an operand, or of the result, of a rule that ad_rule_check accepts. */
ad_letters ad_rule_operand(const ad_rule *rule, size_t operand);
ad_letters ad_rule_result(const ad_rule *rule);
int ad_letters_find(ad_letters letters, char letter); /* the letter's dimension; -1: the letter is not there */

#endif
