/* Judges the dtype in which a job says that a sum is formed by what formed.c finds in its bits. */
#include "say/promised.h"

#include "base/text.h"
#include "files/json.h"
#include "read/declared.h"
#include "say/cause.h"

static int is_declared(const ad_dump_param *param) {
  for (size_t i = 0; i < param->declared_count; i++)
    if (param->declared[i].dtype && param->declared[i].dtype == param->promised) return 1;
  return 0;
}

/* Prints what was rounded, as far as the sum's bits show it: "its result was rounded to bf16". */
static const char *print_rounded(const ad_formed_found *found, char *buffer, size_t size) {
  const char *dtype = found->dtype ? ad_dtype_name(found->dtype) : "fewer bits";
  if (found->formed == AD_FORMED_THEN_ROUNDED)
    snprintf(buffer, size, "its result was rounded to %s", dtype);
  else if (found->before)
    snprintf(buffer, size, "its addends or partial sums were rounded to %s, or its result to still fewer bits", dtype);
  else
    snprintf(buffer, size, "its addends, partial sums or result were rounded to %s", dtype);
  return buffer;
}

/* Changes a verdict to `rounding`: the sum is right but for the dtype that `row` declares. */
static void blame(const ad_parts *parts, const ad_declared *row, const ad_formed_found *found, ad_verdict *verdict) {
  const ad_dump_mesh *mesh = &parts->dump->mesh;
  const char *dtype = ad_dtype_name(row->dtype);
  char axes[AD_DUMP_AXES * AD_DUMP_NAME], rounded[120];
  ad_dump_axes_print(mesh, ad_large_axes(mesh, parts->param->summed), axes, sizeof axes);
  print_rounded(found, rounded, sizeof rounded);
  verdict->kind = AD_CAUSE_ROUNDING;
  verdict->axes = 0;
  ad_text text = ad_text_on(verdict->text, sizeof verdict->text);
  ad_text_add(&text, "the sum%s%.120s ", *axes ? " over " : "", axes);
  if (found->formed == AD_FORMED_THEN_ROUNDED)
    ad_text_add(&text, "has the bits of one formed in %s, as %.120s says, but then %s before it was stored as %s",
                dtype, row->by, rounded, ad_dtype_name(parts->parts[0].terms[0].tensor->dtype));
  else
    ad_text_add(&text, "is none that %s gives, which %.120s says: %s", dtype, row->by, rounded);
  json_array_clear(verdict->causes);
  json_array_append_new(verdict->causes,
                        ad_cause_document(ad_cause_name(verdict->kind), "", verdict->factor, verdict->text, ""));
}

ad_status ad_promised_judge(const ad_parts *parts, ad_verdict *verdict, ad_formed_found *out) {
  const ad_dump_param *param = parts->param;
  int is_rounding = verdict->kind == AD_CAUSE_ROUNDING, is_right = verdict->kind == AD_CAUSE_RIGHT;
  *out = (ad_formed_found){0};
  if (!parts->dump->microbatches || !is_declared(param)) return AD_OK;
  if (!is_right && !is_rounding && verdict->kind != AD_CAUSE_IDENTICAL) return AD_OK;
  AD_TRY(ad_formed_find(parts, param->promised, out));
  int is_narrower = out->formed == AD_FORMED_NARROWER || out->formed == AD_FORMED_THEN_ROUNDED;
  uint32_t summed = ad_large_axes(&parts->dump->mesh, param->summed);
  const ad_declared *row = is_narrower ? ad_declared_dtype(param, summed) : NULL;
  if (row && (is_right || is_rounding)) blame(parts, row, out, verdict);
  return AD_OK;
}

/* Prints what a source says of the dtype, and what the bits say of that. Returns buffer. */
static const char *print_judgement(const json_t *entry, const ad_formed_found *found, char *buffer, size_t size) {
  const char *where = ad_text_of(entry, "where"), *dtype = ad_text_of(entry, "dtype");
  char rounded[120];
  ad_text text = ad_text_on(buffer, size);
  ad_text_add(&text, "says %s (%.120s%s%.120s)", dtype, ad_text_of(entry, "by"), *where ? ", " : "", where);
  if (found->formed == AD_FORMED_UNTESTED) {
    ad_text_add(&text, "; the sum's bits do not show it: %s", found->why);
    return buffer;
  }
  if (found->formed == AD_FORMED_THEN_ROUNDED) ad_text_add(&text, ", and its sum has the bits of one formed so");
  ad_text_add(&text, "; %s: %lld elements are no sum that %s gives", print_rounded(found, rounded, sizeof rounded),
              (long long)found->outside, dtype);
  return buffer;
}

void ad_promised_report(const ad_dump_param *param, const ad_formed_found *found, json_t *entries) {
  static const char *const why_of[] = {[AD_FORMED_UNTESTED] = "untested",
                                       [AD_FORMED_AS_PROMISED] = "",
                                       [AD_FORMED_NARROWER] = "bits",
                                       [AD_FORMED_THEN_ROUNDED] = "stored"};
  char text[AD_VERDICT_TEXT];
  json_t *entry;
  size_t i;
  json_array_foreach(entries, i, entry) {
    ad_dtype dtype;
    if (!*ad_text_of(entry, "dtype") || ad_dtype_parse(ad_text_of(entry, "dtype"), &dtype)) continue;
    if (dtype != param->promised || (!found->formed && !found->why)) continue;
    json_object_set_new(entry, "tested", json_integer(found->tested));
    json_object_set_new(entry, "outside", json_integer(found->outside));
    if (found->formed) json_object_set_new(entry, "holds", json_boolean(found->formed != AD_FORMED_NARROWER));
    json_object_set_new(entry, "why", json_string(why_of[found->formed]));
    if (found->formed != AD_FORMED_AS_PROMISED)
      json_object_set_new(entry, "text", ad_json_text(print_judgement(entry, found, text, sizeof text)));
  }
}
