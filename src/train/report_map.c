/* The map of a check's derived mistakes: one row for each place of the program, one square for each mistake planted
 * there, coloured by what caught it. */
#include <jansson.h>
#include <string.h>
#include "train/report.h"

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static const char style[] =
    "<style>.map td{padding:1px 8px 1px 0;white-space:nowrap}.map i{display:inline-block;width:11px;height:11px;"
    "margin:0 2px 0 "
    "0;border-radius:2px}.type{background:#3b6fb6}.number{background:#2f9e6e}.protocol{background:#8a63b8}"
    ".no_effect{background:#cfcfcf}.none{background:#d0243c}</style>\n";

static const struct {
  const char *caught, *words;
} legend[] = {{"type", "refused by type"},
              {"number", "caught by number"},
              {"protocol", "stopped by protocol"},
              {"no_effect", "without effect"},
              {"none", "survived"}};

static void write_legend(FILE *page) {
  fputs("<p class=map>", page);
  for (size_t i = 0; i < sizeof legend / sizeof *legend; i++)
    fprintf(page, "<i class=%s></i>%s &nbsp; ", legend[i].caught, legend[i].words);
  fputs("Each square tells its mistake when it is pointed at.</p>\n", page);
}

static const char *place_of(const json_t *mistake) { return text_at(json_object_get(mistake, "derived"), "place"); }

static void write_square(FILE *page, const json_t *mistake) {
  const char *message = text_at(mistake, "message"), *cause = text_at(json_object_get(mistake, "cause"), "text");
  fprintf(page, "<i class=%s title=\"", text_at(mistake, "caught_by"));
  ad_report_text(page, text_at(mistake, "name"));
  if (*message || *cause) fputs(" — ", page);
  ad_report_text(page, *message ? message : cause);
  fputs("\"></i>", page);
}

/* The mistakes of one place stand one after another, forms and operators in the order of the table. */
static void write_row(FILE *page, const json_t *mistakes, const char *place) {
  const char *operator_ = "";
  fputs("<tr><td>", page);
  ad_report_text(page, place);
  fputs("</td><td>", page);
  for (size_t i = 0; i < json_array_size(mistakes); i++) {
    const json_t *mistake = json_array_get(mistakes, i);
    if (strcmp(place_of(mistake), place) != 0) continue;
    const char *own = text_at(json_object_get(mistake, "derived"), "operator");
    if (strcmp(own, operator_) != 0) fprintf(page, "%s%s ", *operator_ ? " &nbsp; " : "", own);
    operator_ = own;
    write_square(page, mistake);
  }
  fputs("</td></tr>\n", page);
}

static int is_new(const json_t *mistakes, size_t index) {
  const char *place = place_of(json_array_get(mistakes, index));
  for (size_t i = index; i-- > 0;)
    if (!strcmp(place_of(json_array_get(mistakes, i)), place)) return 0;
  return *place != 0;
}

void ad_report_map(FILE *page, const json_t *document) {
  const json_t *mistakes = json_object_get(document, "sabotage"), *coverage = json_object_get(document, "coverage");
  if (!json_integer_value(json_object_get(coverage, "mistakes"))) return;
  fprintf(page, "%s<h3>Mistakes derived from the program: %lld at %lld places, %lld survived</h3>\n", style,
          (long long)json_integer_value(json_object_get(coverage, "mistakes")),
          (long long)json_integer_value(json_object_get(coverage, "places")),
          (long long)json_integer_value(json_object_get(coverage, "survived")));
  write_legend(page);
  fputs("<div class=wide><table class=map>\n", page);
  for (size_t i = 0; i < json_array_size(mistakes); i++)
    if (is_new(mistakes, i)) write_row(page, mistakes, place_of(json_array_get(mistakes, i)));
  fputs("</table></div>\n", page);
}
