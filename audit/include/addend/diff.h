/* Judges a dump of one step of any training job: how often each rank's addend was counted in the gradient that the
 * optimizer got. audit/docs/dumps.md describes the files.
 *
 * For users. Any thread may call these functions at any time; ad_diff may start threads of its own. */
#ifndef ADDEND_DIFF_H
#define ADDEND_DIFF_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_diff_options {
  size_t size; /* sizeof(ad_diff_options) */
  /* The reference: a file of full gradients by plain parameter names, or another dump (a file or a folder), whose sums
   * are used. NULL: the file of kind reference among `files`, if there is one; otherwise there is no reference. */
  const char *reference;
  void (*progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
  /* 1: the job intends several addends of one sum to be equal (ranks or microbatches with the same data). 0: equal
   * addends are not expected; their counts cannot be distinguished, so their sum is called right only if a reference
   * confirms it. */
  int allow_identical;
  /* 1: every value is known to be a finite number. Parameters are then read in the bytewise order of their names. No
   * value of a parameter is read before progress() was called for the previous parameter, so a caller may fill the
   * files with a parameter's values just before they are read, and remove the values afterwards. */
  int finite;
  /* The most threads (at most 64, including the caller's thread) that judge parameters at a time. Only the caller's
   * thread calls progress(). With 0 or 1, or if `finite` is 1, no thread is started. The findings do not depend on the
   * number of threads. */
  int threads;
} ad_diff_options;

/* Judges the dump that `files` contain; a folder means the safetensors files in it. *json is the document of `addend
 * diff --json`. *holds is 1 if every parameter's sum and the norm are as the types demand, and the count of each addend
 * could be determined. Returns AD_OK also if *holds is 0. The message of AD_INVALID or AD_IO names every file that is
 * wrong and every file that is missing. The caller frees *json with free(). */
AD_API AD_CHECKED ad_status ad_diff(const char *const *files, size_t count, const ad_diff_options *options, int *holds,
                                    char **json);
/* Makes a table for people from the JSON document of ad_diff: parameters with the same finding share a line. Caller
 * frees *out with free(). */
AD_API AD_CHECKED ad_status ad_diff_table(const char *json, ad_text_style style, char **out);
/* The same table as that of ad_diff_table, but with one line for each parameter that is not right. */
AD_API AD_CHECKED ad_status ad_diff_list(const char *json, ad_text_style style, char **out);
/* Makes a table of the collectives that the dump's ranks noted (addend.calls), from the JSON document of ad_diff, with what
 * is too much about those that sum gradients. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_diff_calls(const char *json, ad_text_style style, char **out);
/* Makes annotations for GitHub's runners (`::error title=...::...`) from the JSON document of ad_diff: one annotation
 * for all parameters with the same finding. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_diff_github(const char *json, char **out);
/* Writes a self-contained HTML page from the JSON document of ad_diff: a map of parameters and ranks, coloured by how
 * often each addend was counted. An existing file is replaced only when the new one is complete on disk. The message of
 * AD_IO names the file. */
AD_API AD_CHECKED ad_status ad_diff_page(const char *json, const char *path);
/* Makes the page of ad_diff_page as text. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_diff_html(const char *json, char **out);
/* Sets *out to the page of `addend explain` on `name`: the `kind` of a verdict or a cause, or "norm". If `name` is
 * NULL, *out is the list of all pages, one line each with name and subject. AD_INVALID: there is no such page; the
 * message names similar ones. The caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_explain(const char *name, char **out);
/* Returns 1 if a sum of this kind (the `kind` of a verdict or a cause) is explained by how often each addend counts, and
 * 0 if it is not, so that what changed the gradient after its addend was seen, such as a hook, may have made it. Returns
 * -1 if `kind` is NULL or no kind. */
AD_API int ad_kind_is_counted(const char *kind);

#if defined(__cplusplus)
}
#endif
#endif
