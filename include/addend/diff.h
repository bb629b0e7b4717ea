/* One dumped step of any job, judged: how often each rank's addend was counted in the gradient that the optimizer got.
 * The files are described in docs/dumps.md. */
#ifndef ADDEND_DIFF_H
#define ADDEND_DIFF_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_diff_options {
  size_t size;           /* sizeof(ad_diff_options) */
  const char *reference; /* whole gradients by plain name, or another dump (a file or a folder), whose sums are put
                            together; NULL: none, or the file of kind reference among `files` */
  void (*progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
  int allow_identical; /* 1: addends of one sum are meant to be equal, on ranks or in microbatches. 0: where they are,
                          what was counted cannot be told, and the sum does not hold unless a reference says so */
  int finite;          /* 1: every value is known to be a finite number. Then no value of a parameter is read before
                          progress() told of the parameter before it, in order of their names as bytes, so that a
                          caller may bring values into the files, and take them out, as they are needed */
  int threads; /* at most so many, 64 at most, judge parameters at a time, the caller's among them, which alone calls
                  progress(); 0 and 1: no other is started, and none where `finite` is 1. What is found is the same with
                  any number */
} ad_diff_options;

/* Judges the dump that the files are; a folder stands for the safetensors files in it. *json: the document of
 * `addend diff --json`; *holds: every parameter's sum is what its types say, and so is the norm, and each addend's
 * count could be told. AD_OK also when the answer is no. AD_INVALID, AD_IO: names every file that is wrong, and what is
 * missing. Caller frees *json with free().
 */
AD_API AD_CHECKED ad_status ad_diff(const char *const *files, size_t count, const ad_diff_options *options, int *holds,
                                    char **json);
/* The same document as a table for people: parameters of which the same is said in one line. Caller frees with free().
 */
AD_API AD_CHECKED ad_status ad_diff_table(const char *json, ad_text_style style, char **out);
/* The same table with a line for each parameter that is not right. */
AD_API AD_CHECKED ad_status ad_diff_list(const char *json, ad_text_style style, char **out);
/* The same document as lines that GitHub's runners make annotations of (`::error title=...::...`): one for all
 * parameters of which the same is said. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_diff_github(const char *json, char **out);
/* The same document as a page that carries everything along: a map of parameters and ranks, coloured by how often each
 * addend was counted. A file of that name is replaced when the new one is on disk. AD_IO names it. */
AD_API AD_CHECKED ad_status ad_diff_page(const char *json, const char *path);
/* The same page as a text. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_diff_html(const char *json, char **out);
/* The page of `addend explain` for the `kind` of a verdict or a cause, or "norm"; NULL: the names of all pages, a line
 * each with what they are about. AD_INVALID: there is none of that name; names those that are near. Caller frees with
 * free(). */
AD_API AD_CHECKED ad_status ad_explain(const char *name, char **out);

#if defined(__cplusplus)
}
#endif
#endif
