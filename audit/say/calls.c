/* Lists the collectives of a step: calls that are the same on several ranks are one entry. Of calls that sum gradients it
 * finds those that are made twice, in a wider dtype than the job asked for, for nothing, or over a group that is no axis.
 * None of these makes a sum wrong. */
#include "say/calls.h"

#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "base/roundoff.h"
#include "base/text.h"
#include "files/json.h"
#include "read/declared.h"
#include "read/params.h"

/* An entry of `calls`. */
typedef struct ad_call {
  json_t *entry;
  const char *operation;
  const json_t *params;
  uint32_t axes;      /* the axes larger than 1 that its group spans; 0: the group is no set of axes */
  ad_dtype dtype;     /* 0: one that addend does not have */
  int64_t elements;   /* of one call's input */
  int64_t full, part; /* elements of its parameters' addends, and of their sums, on the first rank that made it */
  int64_t needed;     /* bytes that these sums need */
  int sums;           /* 1: it reduces gradients, as large as those of its parameters */
} ad_call;

/* The calls of one dump, and where findings go. */
typedef struct ad_calls_run {
  const ad_dump *dump;
  json_t *declarations, *calls, *messages;
  ad_call *list;
  size_t count;
} ad_calls_run;

/* ---- merging the ranks' calls ---- */

/* Returns a copy of a call as a file has it, with a default for each key that may be left out. */
static json_t *complete(const json_t *call) {
  json_t *own = json_pack("{s:s, s:s, s:[], s:s, s:I, s:I, s:s, s:[], s:s, s:[]}", "operation",
                          ad_text_of(call, "operation"), "axes", "", "ranks", "dtype", "", "bytes", (json_int_t)0,
                          "count", (json_int_t)0, "phase", "", "backwards", "line", "", "params");
  json_object_update_existing(own, (json_t *)call);
  return own;
}

/* Returns the entry of `calls` that says the same as `call`; else adds one, to `known` too, whose keys are what calls
 * say. NULL: there is no memory. */
static json_t *entry_of(json_t *calls, json_t *known, json_t *call) {
  char *said = json_dumps(call, JSON_SORT_KEYS | JSON_COMPACT);
  json_t *entry = said ? json_object_get(known, said) : NULL;
  if (said && !entry) {
    json_object_set(known, said, call);
    json_object_set_new(call, "made_by", json_array());
    json_array_append(calls, call);
    entry = call;
  }
  free(said);
  return entry;
}

static void add_unseen(json_t *unseen, json_t *why) {
  const json_t *other;
  size_t i;
  json_array_foreach(unseen, i, other) if (json_equal(other, why)) return;
  json_array_append(unseen, why);
}

/* Lists the calls of all ranks. Returns 0 if no file has any. */
static int merge(const ad_dump *dump, json_t *calls, json_t *unseen) {
  json_t *entry, *known = json_object();
  int there = 0;
  size_t i;
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    const ad_dump_file *file = dump->sums[rank];
    there |= file->calls != NULL;
    json_array_foreach(file->calls, i, entry) {
      json_t *why = json_object_get(entry, "unseen"), *own = why ? NULL : complete(entry);
      if (why)
        add_unseen(unseen, why);
      else
        json_array_append_new(json_object_get(entry_of(calls, known, own), "made_by"), json_integer((json_int_t)rank));
      json_decref(own);
    }
  }
  json_decref(known);
  return there;
}

/* ---- what a call sums ---- */

/* Returns how many elements the file's tensor of the parameter has; 0 if it has none. */
static int64_t elements_in(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file) {
  ad_piece piece;
  int there;
  if (ad_dump_piece(dump, param, file, &piece, &there) || !there) return 0;
  return ad_box_numel(&param->shape, &piece.box);
}

/* Sets the numbers of elements of the call's parameters, and the bytes that their sums need, in the dtypes that the job
 * asked for; 0 if one of them is not in the dump. */
static void measure(const ad_dump *dump, ad_call *call) {
  int64_t rank = json_integer_value(json_array_get(json_object_get(call->entry, "made_by"), 0)), full_bytes = 0;
  const json_t *name;
  size_t i;
  json_array_foreach(call->params, i, name) {
    const ad_dump_param *param = ad_dump_find(dump, json_string_value(name));
    const ad_declared *row = param ? ad_declared_dtype(param, call->axes) : NULL;
    int64_t size = (int64_t)ad_dtype_size(row ? row->dtype : call->dtype);
    int64_t full = 0, part = param ? elements_in(dump, param, dump->sums[rank]) : 0;
    for (int64_t m = 0; m < dump->microbatches && param && !full; m++)
      full = elements_in(dump, param, dump->addends[rank * dump->microbatches + m]);
    if (!full) full = part;
    if (!part || part > full) part = full;
    if (!full) call->part = 0;
    if (!full) return;
    call->full += full;
    call->part += part;
    full_bytes += full * size;
    call->needed += part * size;
  }
  if (call->elements >= call->full) call->needed = full_bytes; /* not the sum over further axes of what was scattered */
}

static int is_in(const char *word, const char *const *words) {
  while (*words && strcmp(word, *words) != 0) words++;
  return *words != NULL;
}

static int is_phase(const ad_call *call, const char *phase) { return !strcmp(ad_text_of(call->entry, "phase"), phase); }

static ad_call read_call(const ad_dump *dump, json_t *entry) {
  static const char *const reductions[] = {"all_reduce", "reduce_scatter", "reduce", NULL};
  ad_call call = {.entry = entry, .operation = ad_text_of(entry, "operation")};
  call.params = json_object_get(entry, "params");
  if (ad_dump_axes_parse(&dump->mesh, ad_text_of(entry, "axes"), &call.axes)) call.axes = 0;
  call.axes = ad_large_axes(&dump->mesh, call.axes);
  if (ad_dtype_parse(ad_text_of(entry, "dtype"), &call.dtype)) call.dtype = 0;
  if (call.dtype) call.elements = ad_integer_of(entry, "bytes") / (int64_t)ad_dtype_size(call.dtype);
  measure(dump, &call);
  /* a single number may be another one than the gradient, such as a count of tokens */
  int is_as_large = call.part > 1 && call.elements >= call.part;
  call.sums = is_as_large && is_in(call.operation, reductions) && !is_phase(&call, "forward");
  return call;
}

/* ---- findings ---- */

/* Prints "all_reduce at model.py:40 in step". */
static const char *print_call(const ad_call *call, char *buffer, size_t size) {
  const char *line = ad_text_of(call->entry, "line"), *phase = ad_text_of(call->entry, "phase");
  if (*line)
    snprintf(buffer, size, "%s %s %s", call->operation, strchr(line, ':') ? "at" : "by", line);
  else
    snprintf(buffer, size, "%s %s", call->operation,
             !strcmp(phase, "after") ? "after the last backward" : "in backward");
  return buffer;
}

/* Prints "`norm.weight`" or "`norm.weight` and 2 other parameters". */
static const char *print_params(const char *first, size_t count, char *buffer, size_t size) {
  size_t others = count - 1;
  if (others)
    snprintf(buffer, size, "`%s` and %zu other parameter%s", first, others, ad_plural((long long)others));
  else
    snprintf(buffer, size, "`%s`", first);
  return buffer;
}

/* Adds the sentence to the messages, if the job declares anything and it is not there yet. */
static void tell(ad_calls_run *run, const char *text) {
  const json_t *message;
  size_t i;
  if (!json_array_size(run->declarations)) return;
  json_array_foreach(run->messages, i, message) if (!strcmp(json_string_value(message), text)) return;
  json_array_append_new(run->messages, ad_json_text(text));
}

/* Sets what was found of a call, if nothing was found before. */
static void find(const ad_call *call, const char *finding, const char *text) {
  if (*ad_text_of(call->entry, "finding")) return;
  json_object_set_new(call->entry, "finding", json_string(finding));
  json_object_set_new(call->entry, "text", ad_json_text(text));
}

/* Counts the elements that two lists have in common; *first is the first of them. */
static size_t common(const json_t *a, const json_t *b, const json_t **first) {
  const json_t *one, *other;
  size_t i, j, count = 0;
  json_array_foreach(a, i, one) json_array_foreach(b, j, other) {
    if (!json_equal((json_t *)one, (json_t *)other)) continue;
    if (!count++) *first = one;
  }
  return count;
}

/* Returns 1 if two ascending lists of numbers have one in common. */
static int share_a_number(const json_t *a, const json_t *b) {
  size_t i = 0, j = 0;
  while (i < json_array_size(a) && j < json_array_size(b)) {
    json_int_t one = json_integer_value(json_array_get(a, i)), other = json_integer_value(json_array_get(b, j));
    if (one == other) return 1;
    i += one < other;
    j += other < one;
  }
  return 0;
}

static const json_t *list_of(const ad_call *call, const char *key) { return json_object_get(call->entry, key); }

/* Returns 1 if one rank made both calls in one backward, or one of them after the last backward. */
static int meet(const ad_calls_run *run, const ad_call *a, const ad_call *b) {
  const json_t *of_a = list_of(a, "backwards"), *of_b = list_of(b, "backwards");
  if (!share_a_number(list_of(a, "made_by"), list_of(b, "made_by"))) return 0;
  if (is_phase(a, "after") || is_phase(b, "after")) return 1;
  if (!json_array_size(of_a) || !json_array_size(of_b)) return run->dump->microbatches == 1;
  return share_a_number(of_a, of_b);
}

/* Returns 1 if a rank made the call more than once in a backward, or after the last one. */
static int is_repeated(const ad_call *call) {
  size_t backwards = json_array_size(list_of(call, "backwards"));
  return ad_integer_of(call->entry, "count") > (long long)(backwards ? backwards : 1);
}

static void find_twice(ad_calls_run *run, const ad_call *a, const ad_call *b) {
  char names[200], axes[AD_DUMP_AXES * AD_DUMP_NAME], one[200], other[200], text[800];
  const json_t *first;
  uint32_t over = a->axes & b->axes;
  if (!over || !b->sums || (a == b && !is_repeated(a)) || !meet(run, a, b)) return;
  size_t count = common(a->params, b->params, &first);
  if (!count) return;
  if (is_phase(a, "backward") && !json_array_size(list_of(a, "backwards")) && run->dump->microbatches > 1) return;
  ad_dump_axes_print(&run->dump->mesh, over, axes, sizeof axes);
  print_params(json_string_value(first), count, names, sizeof names);
  print_call(a, one, sizeof one);
  print_call(b, other, sizeof other);
  ad_text sentence = ad_text_on(text, sizeof text);
  if (a == b)
    ad_text_add(&sentence, "%s: reduced over %s more than once in a backward, %s; a sum needs one", names, axes, one);
  else
    ad_text_add(&sentence, "%s: reduced over %s twice, %s and %s; a sum needs one", names, axes, one, other);
  find(a, "twice", text);
  find(b, "twice", text);
  tell(run, text);
}

/* Returns the entry of `declarations` on the parameter's dtype or, if `axis` is not NULL, its type I on this axis. */
static json_t *entry_on(const ad_calls_run *run, const char *name, const char *axis, ad_dtype dtype) {
  json_t *entry;
  size_t i;
  json_array_foreach(run->declarations, i, entry) {
    if (strcmp(ad_text_of(entry, "name"), name) != 0) continue;
    if (axis && !strcmp(ad_text_of(entry, "axis"), axis) && !strcmp(ad_text_of(entry, "type"), "I") &&
        json_is_true(json_object_get(entry, "holds")))
      return entry;
    if (!axis && !strcmp(ad_text_of(entry, "dtype"), ad_dtype_name(dtype))) return entry;
  }
  return NULL;
}

/* Changes the entry on a declared dtype that the call does not follow: it is formed in a wider one. */
static void contradict(const ad_calls_run *run, const char *name, const ad_declared *row, const ad_call *call) {
  char made[200], text[600];
  json_t *entry = entry_on(run, name, NULL, row->dtype);
  if (!entry || json_is_false(json_object_get(entry, "holds"))) return;
  snprintf(text, sizeof text, "says %s (%.120s); but %s sends %s", ad_dtype_name(row->dtype), row->by,
           print_call(call, made, sizeof made), ad_dtype_name(call->dtype));
  json_object_set_new(entry, "holds", json_false());
  json_object_set_new(entry, "why", json_string("calls"));
  json_object_set_new(entry, "text", ad_json_text(text));
}

static void find_wider(const ad_calls_run *run, const ad_call *call) {
  char names[200], made[200], text[600];
  const ad_declared *asked = NULL;
  const char *first = NULL;
  const json_t *name;
  size_t i, count = 0;
  json_array_foreach(call->params, i, name) {
    const ad_dump_param *param = ad_dump_find(run->dump, json_string_value(name));
    const ad_declared *row = param ? ad_declared_dtype(param, call->axes) : NULL;
    if (!call->sums || !row || ad_dtype_size(call->dtype) <= ad_dtype_size(row->dtype)) continue;
    contradict(run, json_string_value(name), row, call);
    if (!count++) first = json_string_value(name), asked = row;
  }
  if (!count) return;
  snprintf(text, sizeof text, "%s: %s sends %s, %lld bytes; %.120s says %s, which needs %lld",
           print_params(first, count, names, sizeof names), print_call(call, made, sizeof made),
           ad_dtype_name(call->dtype), ad_integer_of(call->entry, "bytes"), asked->by, ad_dtype_name(asked->dtype),
           ad_integer_of(call->entry, "needed"));
  find(call, "wider", text);
}

/* Returns 1 if the parameter's ranks are declared to do the same work on all of these axes, and do. */
static int is_same_work(const ad_calls_run *run, const char *name, uint32_t axes) {
  for (int axis = 0; axis < run->dump->mesh.count; axis++)
    if (axes >> axis & 1 && !entry_on(run, name, run->dump->mesh.name[axis], 0)) return 0;
  return 1;
}

static void find_for_nothing(ad_calls_run *run, const ad_call *call) {
  char names[200], axes[AD_DUMP_AXES * AD_DUMP_NAME], made[200], text[600];
  int moves = call->sums || (!strcmp(call->operation, "broadcast") && call->part > 1 && call->elements >= call->part);
  const json_t *name;
  size_t i;
  if (!moves || !call->axes || !json_array_size(call->params)) return;
  json_array_foreach(call->params, i, name) if (!is_same_work(run, json_string_value(name), call->axes)) return;
  ad_dump_axes_print(&run->dump->mesh, call->axes, axes, sizeof axes);
  print_params(json_string_value(json_array_get(call->params, 0)), json_array_size(call->params), names, sizeof names);
  ad_text sentence = ad_text_on(text, sizeof text);
  ad_text_add(&sentence, "%s: %s moves %lld bytes over %s for nothing: all ranks there have the same gradient", names,
              print_call(call, made, sizeof made), ad_integer_of(call->entry, "bytes"), axes);
  find(call, "for_nothing", text);
  json_object_set_new(call->entry, "needed", json_integer(0));
  tell(run, text);
}

/* Notes a sum over a group of some ranks that is no set of axes. It may be meant, so it is no message; other calls than
 * sums have such groups in right jobs. */
static void find_no_axis(const ad_calls_run *run, const ad_call *call) {
  const json_t *ranks = list_of(call, "ranks"), *rank;
  char listed[120], made[200], mesh[AD_DUMP_AXES * (AD_DUMP_NAME + 16)], text[600];
  ad_text of_ranks = ad_text_on(listed, sizeof listed), of_mesh = ad_text_on(mesh, sizeof mesh);
  size_t i, count = 0;
  if (json_array_size(ranks) < 2 || !json_array_size(call->params)) return;
  json_array_foreach(ranks, i, rank) ad_text_list(&of_ranks, &count, "", "%lld", (long long)json_integer_value(rank));
  for (int axis = 0; axis < run->dump->mesh.count; axis++)
    ad_text_add(&of_mesh, "%s%s=%lld", axis ? " " : "", run->dump->mesh.name[axis],
                (long long)run->dump->mesh.size[axis]);
  ad_text sentence = ad_text_on(text, sizeof text);
  ad_text_add(&sentence, "%s is over ranks %s: no axes of the mesh %s have these ranks",
              print_call(call, made, sizeof made), listed, mesh);
  find(call, "no_axis", text);
}

/* Names, in the entry on a dtype that the bits contradict, the call that is made in a narrower one. */
static void cite(const ad_calls_run *run, json_t *entry) {
  ad_dtype dtype;
  char made[200], axes[AD_DUMP_AXES * AD_DUMP_NAME];
  const json_t *name = json_object_get(entry, "name"), *first;
  if (strcmp(ad_text_of(entry, "why"), "bits") != 0 || ad_dtype_parse(ad_text_of(entry, "dtype"), &dtype)) return;
  for (size_t i = 0; i < run->count; i++) {
    const ad_call *call = &run->list[i];
    json_t *names = json_pack("[O]", name);
    int is_own = call->sums && common(call->params, names, &first);
    json_decref(names);
    if (!is_own || !ad_dtype_is_float(call->dtype) || ad_unit_roundoff(call->dtype) <= ad_unit_roundoff(dtype))
      continue;
    ad_dump_axes_print(&run->dump->mesh, call->axes, axes, sizeof axes);
    json_object_set_new(entry, "text",
                        json_sprintf("%s; %s over %s sends %s", ad_text_of(entry, "text"),
                                     print_call(call, made, sizeof made), axes, ad_dtype_name(call->dtype)));
    return;
  }
}

static ad_status judge(ad_calls_run *run) {
  json_t *entry;
  size_t i;
  AD_TRY(ad_new(json_array_size(run->calls), &run->list));
  json_array_foreach(run->calls, i, entry) run->list[i] = read_call(run->dump, entry);
  run->count = json_array_size(run->calls);
  for (size_t a = 0; a < run->count; a++) {
    const ad_call *call = &run->list[a];
    json_object_set_new(call->entry, "needed", call->sums ? json_integer((json_int_t)call->needed) : json_null());
    json_object_set_new(run->list[a].entry, "finding", json_string(""));
    json_object_set_new(run->list[a].entry, "text", json_string(""));
  }
  for (size_t a = 0; a < run->count; a++)
    for (size_t b = a; b < run->count && run->list[a].sums; b++) find_twice(run, &run->list[a], &run->list[b]);
  for (size_t a = 0; a < run->count; a++) {
    find_wider(run, &run->list[a]);
    find_for_nothing(run, &run->list[a]);
    find_no_axis(run, &run->list[a]);
  }
  json_array_foreach(run->declarations, i, entry) cite(run, entry);
  ad_release(run->list);
  return AD_OK;
}

ad_status ad_calls_report(const ad_dump *dump, json_t *declarations, json_t *document, json_t *messages) {
  json_t *unseen = json_array();
  ad_calls_run run = {dump, declarations, json_array(), messages, NULL, 0};
  int there = merge(dump, run.calls, unseen);
  ad_status status = there ? judge(&run) : AD_OK;
  if (there) json_object_set(document, "calls", run.calls);
  if (there) json_object_set(document, "calls_unseen", unseen);
  json_decref(run.calls);
  json_decref(unseen);
  return status;
}
