/* What a message says. A test asserts its facts: names, numbers, places, ranks, axes. Its sentence is in a golden
 * file, so that a better sentence is a diff to read and breaks no test.
 *
 *   assert_says("data.seq", "40", "32");                  the message recorded last has these facts
 *   assert_text_says(page, "emb.w", "2.5e-07");           one line of the text has them all
 *   CHECK_SAYS("rank 1", "signal 9");                     the first, in a rank, see ranks.h
 *
 * assert_says_all and CHECK_SAYS_ALL take a list that ends with NULL, for tables of cases. assert_says_in also names the
 * list of sentences, which otherwise is that of the function: a helper's caller, or a case.
 *
 * A fact is a name or a value as the message prints it: it is in quotes or backquotes there, or it has a digit, a
 * capital letter, a slash, a point, an equals sign or an underscore, or it is an option of the command line, or axes or a
 * term of the field (AXES in says.c), or a shape in brackets, or the subject before the message's colon. It is no part of
 * a longer name, option or number. Facts that are numbers alone have the order of the message, so that "4 of 3" is not
 * "3 of 4" (not so in says.sh and says.py). A word of prose is refused as a fact.
 *
 * tests/golden/LAYER.txt lists the sentences of each test function. A sentence that is not listed there fails its test;
 * script/golden writes the lists again. A sentence is listed without its numbers, and paths of this source tree and of
 * temporary files without their beginnings. assert_listed() is for a message without any fact, whose status and sentence
 * are all there is to assert. assert_facts and CHECK_FACTS leave the sentence out, where it differs from run to run
 * beyond that: which rank speaks first. */
#ifndef TESTS_SUPPORT_SAYS_H
#define TESTS_SUPPORT_SAYS_H
#include "addend/status.h"

#define SAYS_FACTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define assert_says(...) \
  says_or_fail(says_wrong(ad_last_error(), SAYS_FACTS(__VA_ARGS__), __FILE__, __func__), __FILE__, __LINE__)
#define assert_listed() assert_says(NULL)
#define assert_says_all(facts) \
  says_or_fail(says_wrong(ad_last_error(), (facts), __FILE__, __func__), __FILE__, __LINE__)
#define assert_text_says(text, ...) \
  says_or_fail(says_wrong_line((text), SAYS_FACTS(__VA_ARGS__), __FILE__, __func__), __FILE__, __LINE__)
#define assert_says_in(list, text, facts) \
  says_or_fail(says_wrong((text), (facts), __FILE__, (list)), __FILE__, __LINE__)
#define assert_facts(text, ...) says_or_fail(says_missing((text), SAYS_FACTS(__VA_ARGS__)), __FILE__, __LINE__)

/* What is wrong with a text, in memory that the next call of the thread uses again; NULL if it has the facts, and if
 * its sentence is listed for this function of this test. `facts` ends with NULL. */
const char *says_wrong(const char *text, const char *const *facts, const char *file, const char *function);
/* The same for a text of many lines, of which the first that has all facts is the sentence. */
const char *says_wrong_line(const char *text, const char *const *facts, const char *file, const char *function);
const char *says_missing(const char *text, const char *const *facts);
/* Ends the test with `wrong`, if that is not NULL. */
void says_or_fail(const char *wrong, const char *file, int line);

#endif
