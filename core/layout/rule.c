/* Reads the letters of a rule. propagate.c derives types from them. */
#include "layout/rule.h"
#include <string.h>
#include "base/error.h"

static ad_letters letters_at(const char *data) { return (ad_letters){data, (int)strcspn(data, ",-")}; }

ad_letters ad_rule_operand(const ad_rule *rule, size_t operand) {
  const char *start = rule->dims;
  for (size_t i = 0; i < operand; i++) start += strcspn(start, ",") + 1;
  return letters_at(start);
}

ad_letters ad_rule_result(const ad_rule *rule) { return letters_at(strstr(rule->dims, "->") + 2); }

int ad_letters_find(ad_letters letters, char letter) {
  for (int i = 0; i < letters.count; i++)
    if (letters.data[i] == letter) return i;
  return -1;
}

/* Returns 1 if the letters are at most AD_DIMS_MAX different letters of the alphabet. */
static int letters_valid(ad_letters letters) {
  for (int i = 0; i < letters.count; i++) {
    char c = letters.data[i];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return 0;
    if (ad_letters_find(letters, c) != i) return 0;
  }
  return letters.count <= AD_DIMS_MAX;
}

ad_status ad_rule_check(const ad_rule *rule, size_t count) {
  const char *arrow = strstr(rule->dims, "->");
  size_t operands = 1;
  for (const char *c = rule->dims; arrow && c < arrow; c++) operands += *c == ',';
  int valid = arrow && !strpbrk(arrow + 2, ",-") && letters_valid(ad_rule_result(rule));
  for (size_t i = 0; valid && i < operands; i++) {
    ad_letters letters = ad_rule_operand(rule, i);
    const char *end = letters.data + letters.count;
    valid = letters_valid(letters) && (end == arrow || (end < arrow && *end == ','));
  }
  if (!valid)
    return ad_fail(
        AD_INVALID,
        "%s: the rule's `dims` is \"%.80s\", which is not a rule for dimensions; write a rule like \"bk,kn->bn\", with "
        "at most %d different letters for each operand",
        rule->name, rule->dims, AD_DIMS_MAX);
  if (rule->linearity != AD_MULTILINEAR && rule->linearity != AD_ADDITIVE && rule->linearity != AD_NONLINEAR)
    return ad_fail(AD_INVALID, "%s: the rule's `linearity` is %d, which does not exist; use a value of ad_linearity",
                   rule->name, (int)rule->linearity);
  if (operands != count)
    return ad_fail(AD_INVALID,
                   "%s: the rule's `dims` is \"%.80s\", for %zu operands, but the call has %zu operands; write a term "
                   "in `dims` for each operand",
                   rule->name, rule->dims, operands, count);
  return AD_OK;
}
