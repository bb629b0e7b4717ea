/* `addend explain`: prints the page about a kind or cause that a diff can name. The texts are
 * audit/docs/explain/NAME.md. */
#include "say/guide.h"

#include <stdio.h>
#include <string.h>
#include "addend/diff.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/text_stream.h"

static const ad_guide_page *find_page(const char *name) {
  for (const ad_guide_page *page = ad_guide_pages; page->name; page++)
    if (!strcmp(page->name, name)) return page;
  return NULL;
}

int ad_guide_has(const char *name) { return find_page(name) != NULL; }

/* Prints "; did you mean ...?" with the pages whose name is within a few typing errors of `unknown`, contains it or is
 * contained in it. */
static void print_near(const char *unknown, char *out, size_t size) {
  ad_text text = ad_text_on(out, size);
  *out = 0;
  for (const ad_guide_page *page = ad_guide_pages; page->name; page++) {
    int is_part = strlen(unknown) > 2 && (strstr(page->name, unknown) || strstr(unknown, page->name));
    if (is_part || ad_name_distance(unknown, page->name) <= ad_name_distance_max(unknown))
      ad_text_add(&text, "%s%s", text.used ? ", " : "; did you mean ", page->name);
  }
  ad_text_add(&text, text.used ? "?" : "");
}

/* Prints a page's name and title. The title is what follows the colon in the page's first line, such as "# own_only:
 * each rank's own addend only". */
static void print_title(FILE *file, const ad_guide_page *page) {
  const char *title = page->text + strspn(page->text, "# ");
  const char *colon = strchr(title, ':');
  int length = colon ? (int)strcspn(colon + 2, "\n") : 0;
  fprintf(file, "  %-28s %.*s\n", page->name, length, colon ? colon + 2 : "");
}

/* Prints the names and titles of all pages. */
static ad_status list(char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the list of pages", &to));
  for (const ad_guide_page *page = ad_guide_pages; page->name; page++) print_title(to.file, page);
  return ad_text_stream_close(&to, AD_OK, out);
}

ad_status ad_explain(const char *name, char **out) {
  char near[256], typed[128];
  AD_NEED(out);
  if (!name) return list(out);
  const ad_guide_page *page = find_page(name);
  if (page) return ad_copy_string(page->text, out);
  print_near(name, near, sizeof near);
  return ad_fail(AD_INVALID, "`addend explain` has no page '%s'%s%s", ad_printable(name, typed, sizeof typed), near,
                 *near ? "" : "; type `addend explain` for a list of the pages");
}
